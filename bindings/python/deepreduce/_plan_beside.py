"""Plans of tensors that go as they are, where their neighbours have another plan."""

from __future__ import annotations

from .plan import Plan, as_plan


def dense_beside(plan: Plan, exact: Plan) -> Plan:
    """The plan of a tensor that goes as it is, where others have `plan`: with the same momentum, if that has one."""
    feedback = next((each for each in str(plan).split() if each.startswith("feedback=")), "")
    if feedback.startswith("feedback=momentum"):
        return _one(f"{exact} {feedback}")
    if not feedback.startswith("feedback=dgc"):
        return exact
    given = feedback.removeprefix("feedback=dgc").strip("()").split(",")
    kept = [each for each in given if each and not each.startswith("masking=")]
    return _one(f"{exact} feedback=dgc({','.join([*kept, 'masking=off'])})")  # all is sent: masked, u would stay 0


def rows_beside(plan: Plan) -> Plan:
    """The plan of rows that are selected already, where others have `plan`: its index and value codecs. An index codec
    that sends all rows, or others than were selected, gives way to golomb. Nothing of the rows is kept: no feedback."""
    stages = {} if plan.info.transforms else {each.partition("=")[0]: each for each in str(plan).split()}
    index = stages.get("index", "index=raw" if stages else "index=golomb")
    if plan.info.lossy_support or index.startswith(("index=all", "index=seeded")):
        index = "index=golomb"
    return _one(" ".join([index, *(stages[role] for role in ("value", "order") if role in stages)]))


def _one(text: str) -> Plan:
    """The plan of all equal texts: tensors of a flat batch have the same object."""
    return as_plan(str(as_plan(text)))
