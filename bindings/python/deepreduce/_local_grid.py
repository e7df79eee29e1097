"""deepreduce.flower: a federation in one process."""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, List, Optional

from flwr.app import Context, Error, Message, RecordDict


class LocalGrid:
    """A Grid whose clients run in this process, one after another: Flower without a network, for tests and experiments.
    A client's exception is the Error of its reply, as it is elsewhere.

    app    a ClientApp
    nodes  how many clients; they have the numbers 1 …
    """

    def __init__(self, app: Any, nodes: int) -> None:
        self._app = app
        self.contexts = {node: Context(0, node, {}, RecordDict(), {}) for node in range(1, nodes + 1)}
        with contextlib.suppress(ImportError):  # where messages learn who sends them, from Flower 1.41 on
            from flwr.supercore.task_identity import TaskIdentity

            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 0, 0, 0

    def get_node_ids(self) -> List[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: Optional[float] = None) -> List[Any]:
        """The replies, in the order of the messages."""
        return [self._answer(message) for message in messages]

    def _answer(self, message: Any) -> Any:
        try:
            return self._app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(0, f"{type(error).__name__}: {error}"), reply_to=message)
