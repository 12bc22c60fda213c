"""A setter of the user's that writes into the loader's own batch is refused."""

import pytest

from augmentation_plugin.setters import check_setter
from engine_core.errors import ArgumentError


def test_a_setter_that_writes_into_the_batch_is_refused():
    check_setter({"x": 1}, "input_key", "x")
    with pytest.raises(ArgumentError, match=r"^the setter of input_key writes into the loader's batch"):
        check_setter([1], "input_key", (lambda batch: batch[0], lambda batch, value: batch.__setitem__(0, value)))


class Rows:
    """Gives another view of itself each time, as tensors do."""

    def view_as(self, other):
        return Rows()


def test_a_setter_that_copies_the_outer_container_alone_is_refused_and_undone():
    def put(batch, value):
        batch = dict(batch)
        batch["inner"]["x"] = value
        return batch

    rows = Rows()
    batch = {"inner": {"x": rows}}
    with pytest.raises(ArgumentError, match="of everything on the way to the item"):
        check_setter(batch, "input_key", (lambda batch: batch["inner"]["x"], put))
    assert batch["inner"]["x"] is rows
