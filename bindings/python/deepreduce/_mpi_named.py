"""deepreduce.mpi: tensors with names, each by the plan that a book has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .book import Book, as_book
from .errors import ArgumentError, Error, PeerError
from .plan import Plan, as_plan

if TYPE_CHECKING:
    from .mpi import AllReduce, _Pause

# What is sent of a tensor without a plan: all of it, exactly, each element twice at most.
_DENSE = "index=all value=raw exchange=owner"


class NamedAllReduce:
    """The mean over all ranks of `comm` of tensors that have names, each by its plan; one exchange for each plan of
    the book, and all of them are under way at the same time.

    x        {name: array}, read where they lie at each call; the same names and shapes on all ranks
    plan     a Book, "book:PATH", a plan or its text, or {pattern: plan} or pairs, of which the first that matches
             counts; None and no match: dense, exactly. A plan's `exchange=…` says who sends to whom
    comm     of mpi4py; None: COMM_WORLD. Each exchange gets a communicator of its own
    options  sum, timeout, dense_below, trace, threads of AllReduce

    out      {name: array} of the means
    plans    {name: plan} that each tensor has

    Errors are those of AllReduce; the outputs of other exchanges may be written then.
    """

    _failed: Optional[Error] = None  # what the first exchange of the step to fail raised

    def __init__(self, x: Mapping[str, Any], plan: Any, comm: Any = None, **options: Any) -> None:
        from .mpi import AllReduce, MpiTransport

        if not isinstance(x, Mapping) or not x:
            raise ArgumentError("x has no names: it is {name: array}, with one at least")
        self.plans: Dict[str, Plan] = {}
        self._means: List[Tuple[List[str], AllReduce]] = []
        self._under_way: List[AllReduce] = []
        # A book may be read by a rank and not by another; then all fail, and the first says why.
        self._transport = MpiTransport(comm, options.get("timeout", 60.0))
        book, failed = None, None
        try:
            book = _book_of(plan)
        except Error as error:
            failed = error
        codes = self._transport.gather(0 if failed is None else failed.code)
        if failed is not None:
            raise failed
        for rank, code in enumerate(codes):
            if code:
                refused = PeerError(f"rank {rank}: it cannot read its plan")
                refused.rank = rank
                raise refused
        assert book is not None
        for each, names in book.groups(x).items():
            chosen = as_plan(_DENSE) if each is None else each
            self.plans.update(dict.fromkeys(names, chosen))
            self._means.append((names, AllReduce([x[name] for name in names], chosen, comm, **options)))
        of_plan = dict(pair for names, mean in self._means for pair in zip(names, mean.out))
        self.out: Dict[str, Any] = {name: of_plan[name] for name in x}

    def __call__(self, step: Optional[int] = None, seed: int = 0) -> Dict[str, Any]:
        """Begins, waits, returns `out`."""
        self.start(step, seed)
        return self.wait()

    def start(self, step: Optional[int] = None, seed: int = 0) -> None:
        """Begins all exchanges. The step (None: the number of the call) and the seed are those of all ranks."""
        if self._under_way:
            raise ArgumentError("a step is under way: go on with test() or wait()")
        for _, mean in self._means:
            try:
                mean.start(step, seed)
            except Error as error:  # none may stay under way, or no step could begin any more
                self._failed = error
                for each in self._under_way:
                    each.exchange.cancel()
                self.wait()  # which raises it
            self._under_way.append(mean)

    def test(self) -> bool:
        """Goes on. True: all are done. MPI makes way only while it is called. What an exchange raises comes when the others
        have ended, too: then the next step can begin."""
        self._under_way, failed = _advance(self._under_way)
        self._failed = self._failed or failed
        if self._under_way or self._failed is None:
            return not self._under_way
        try:
            raise self._failed
        finally:
            self._failed = None

    def wait(self) -> Dict[str, Any]:
        """Goes on to the end, and returns `out`."""
        pause = _pause_of([mean for _, mean in self._means])
        while not self.test():
            pause.rest()
        return self.out

    def close(self) -> None:
        """Gives the communicators back to MPI. All ranks call it, or none."""
        for _, mean in self._means:
            mean.close()
        self._transport.close()


def wait_all(means: Sequence[AllReduce]) -> List[Any]:
    """Goes on with all that were started, side by side, to the end of each; their `out`. An error of one, the first in time,
    comes when the others have ended, too: they can start their next step."""
    left, failed, pause = list(means), None, _pause_of(means)
    while left:
        left, error = _advance(left)
        failed = failed or error
        if left:
            pause.rest()
    if failed is not None:
        raise failed
    return [mean.out for mean in means]


def _advance(means: Sequence[AllReduce]) -> Tuple[List[AllReduce], Optional[Error]]:
    """Those that are not done, and the first error of one that is."""
    left, failed = [], None
    for mean in means:
        try:
            if not mean.test():
                left.append(mean)
        except Error as error:
            failed = failed or error
    return left, failed


def _pause_of(means: Sequence[AllReduce]) -> _Pause:
    from .mpi import _Pause

    return _Pause(*(each for mean in means for each in mean._transports))


def _book_of(plan: Any) -> Book:
    book = as_book(plan)
    if book is not None:
        return book
    if plan is None or isinstance(plan, (str, Plan)):
        return Book([("*", plan)])
    return Book(plan.items() if isinstance(plan, Mapping) else plan)
