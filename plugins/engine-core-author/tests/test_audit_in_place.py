"""The loader's own tensors, and the container that holds them, may not be changed in place; an algorithm's own may."""

import torch
from parts import acting, rows

from .audits import audited

IN_PLACE = (
    "in place, and the loader may give the same object again: "
    "put a new tensor into the batch, as state.batch_set_item(key, tensor) does"
)


def double(event, state):
    state.batch[0].mul_(2)


def replace(event, state):
    state.batch_set_item(0, state.batch[0] + 1)


def test_a_tensor_of_the_loader_that_is_changed_in_place_is_found_though_the_batch_is_declared():
    assert audited(acting(double, "batch_start", writes=("batch",)))[1] == [
        f"Faulty changed batch ([0]) at BATCH_START of batch 0 {IN_PLACE}"
    ]


def test_that_holds_for_its_microbatches_too():
    made = acting(replace, "batch_start", writes=("batch",), name="Replace", before=("faulty",))
    doubling = acting(double, "before_forward", writes=("batch",))
    assert audited(made, doubling, microbatch_size=3)[1] == []
    assert audited(doubling, microbatch_size=3)[1] == [
        f"Faulty changed batch ([0]) at BEFORE_FORWARD of batch 0 {IN_PLACE}"
    ]


def test_a_change_in_place_is_found_though_the_batch_then_holds_a_copy_of_what_was():
    def write(event, state):
        whole, x = state.batch, state.batch[0].clone()
        whole[0].mul_(2)
        state.batch = (x, whole[1])

    assert audited(acting(write, "batch_start", writes=("batch",)))[1] == [
        f"Faulty changed batch ([0]) at BATCH_START of batch 0 {IN_PLACE}"
    ]


def test_asking_for_the_gradient_of_the_inputs_does_not_change_what_is_in_them():
    def ask(event, state):
        state.batch[0].requires_grad_(event.is_before_event)

    asking = acting(ask, "before_forward", "after_backward", writes=("batch",))
    assert audited(asking, model=torch.nn.Sequential(torch.nn.Linear(4, 3)))[1] == []


class OfDict(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, batch):
        return self.inner(batch["x"])

    def loss(self, outputs, batch):
        return torch.nn.functional.cross_entropy(outputs, batch["y"])


def of_dict(*algorithms):
    data = [dict(zip("xy", rows(8, seed), strict=True)) for seed in (1, 2)]
    return audited(*algorithms, data=data, model=OfDict(), loss_fn=None)[1]


def put(event, state):
    state.batch["x"] = state.batch["x"] + 1


def test_a_new_tensor_in_the_loaders_own_dict_is_found():
    assert of_dict(acting(put, "batch_start", writes=("batch",))) == [
        f"Faulty changed batch (x) at BATCH_START of batch 0 {IN_PLACE}"
    ]


def test_a_new_tensor_in_a_dict_that_an_algorithm_made_is_fine():
    def make(event, state):
        state.batch_set_item("x", state.batch["x"] + 1)

    made = acting(make, "batch_start", writes=("batch",), name="Replace", before=("faulty",))
    assert of_dict(made, acting(put, "batch_start", writes=("batch",))) == []


def test_the_loaders_dict_that_was_put_back_is_still_the_loaders():
    kept = []

    def mask(event, state):
        if event.is_before_event:
            kept.append(state.batch)
            state.batch = {**state.batch, "x": state.batch["x"] * 0}
        else:
            state.batch = kept.pop()

    masking = acting(mask, "before_forward", "after_forward", writes=("batch",), name="Mask")
    assert of_dict(masking, acting(put, "before_backward", writes=("batch",))) == [
        f"Faulty changed batch (x) at BEFORE_BACKWARD of batch 0 {IN_PLACE}"
    ]
