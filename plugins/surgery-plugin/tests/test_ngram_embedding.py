"""Embeddings of n-grams against sums by hand, in models and runs, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from surgery_parts import LanguageModel, check_resumed_and_loaded, run_init, train_on_sentences, twins
from torch import nn

from engine_core import by_name
from engine_core.errors import ArgumentError
from surgery_plugin import HashedNgramEmbedding, NgramEmbedding, apply_ngram_embedding


def made(sizes=(2, 3), buckets=50, **given):
    torch.manual_seed(0)
    return HashedNgramEmbedding(nn.Embedding(9, 4, **given), sizes, buckets, std=1.0)


def bucket_of(gram, buckets):
    """Return its row in Python's whole numbers, which don't overflow."""
    code = sum((token + 1) * 1_103_515_245**power for power, token in enumerate(reversed(gram)))
    return code % (2**31 - 1) % buckets


def by_hand(embed, row):
    """Return the paper's sum (length, dim)."""
    found = []
    for place, token in enumerate(row):
        total = embed.weight[token]
        for size, table in sorted(zip(embed.sizes, embed.ngram_embeddings, strict=True), key=lambda pair: pair[0]):
            total = total + table.weight[bucket_of(row[max(0, place - size + 1) : place + 1], embed.buckets)]
        found.append(total)
    return torch.stack(found)


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 8), min_size=5, max_size=5), min_size=1, max_size=2),
    st.integers(1, 5),
    st.sampled_from([(2,), (3, 2), (2, 7)]),
    st.sampled_from([torch.int64, torch.int32]),
)
def test_each_token_gets_the_sum_of_its_own_and_of_the_n_grams_that_end_with_it(rows, length, sizes, dtype):
    embed, rows = made(sizes), [row[:length] for row in rows]
    assert torch.equal(embed(torch.tensor(rows, dtype=dtype)), torch.stack([by_hand(embed, row) for row in rows]))


@settings(max_examples=25)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 3))
def test_a_row_gets_the_same_behind_padding_and_before_it_and_padding_its_own_alone(row, before, after):
    embed = made(padding_idx=0)
    with torch.no_grad():
        embed.weight[0] = 5.0
    padded = embed(torch.tensor([[0] * before + row + [0] * after]))[0]
    assert torch.equal(padded[before : before + len(row)], embed(torch.tensor([row]))[0])
    assert (padded[:before] == 5).all() and (padded[before + len(row) :] == 5).all()


def test_n_grams_of_a_large_vocabulary_spread_over_all_buckets():
    embed, tokens = HashedNgramEmbedding(nn.Embedding(200_000, 1), (8,), 512), torch.randint(200_000, (64, 256))
    seen = []
    embed.ngram_embeddings[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    embed(tokens)
    row = tokens[0].tolist()
    assert seen[0][0].tolist() == [bucket_of(row[max(0, place - 7) : place + 1], 512) for place in range(256)]
    counts = torch.bincount(seen[0].flatten(), minlength=512)
    assert len(counts) == 512 and counts.min() > 8 and counts.max() < 60  # 32 and more than four standard deviations


def test_a_tied_head_stays_tied_and_optimizers_find_the_new_weights_by_name():
    model = LanguageModel()
    assert apply_ngram_embedding(model, buckets=7) == ["embed"]
    assert model.head.weight is model.embed.weight
    assert (model.embed.num_embeddings, model.embed.embedding_dim) == (12, 8)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    first, _ = by_name({"embed": sgd, "*": sgd})(model.named_parameters())
    assert [tuple(each.shape) for each in first.param_groups[0]["params"]] == [(12, 8), (7, 8), (7, 8)]
    assert all(
        torch.equal(twin.embed(x), model.embed(x)) for x in [torch.arange(8).view(2, 4)] for twin in twins(model)
    )


def test_new_weights_follow_from_the_seed_alone_on_all_ranks_and_a_std_of_0_changes_no_output():
    tables = []
    for seed, rank in ((1, 0), (1, 1), (2, 0)):
        model = LanguageModel()
        run_init(model, NgramEmbedding(std=0.5), seed=seed, rank=rank, world_size=2)
        tables.append(model.embed.ngram_embeddings[0].weight.detach())
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[2])
    assert tables[0].std() == pytest.approx(0.5, rel=0.02)
    model, x = LanguageModel(), torch.arange(8).view(2, 4)
    before = model(x)
    apply_ngram_embedding(model, std=0)
    assert torch.equal(model(x), before)


def test_what_only_the_two_tokens_before_decide_is_learned_with_it_and_not_without():
    """Blocks that look at no other token can't know the sum of two."""
    plain, added = (
        train_on_sentences(algorithms, max_duration="20ep").state.loss.item() for algorithms in ([], [NgramEmbedding()])
    )
    assert plain > 2 and added < 1


def test_a_resumed_run_and_a_loaded_model_have_the_same_weights(tmp_path):
    check_resumed_and_loaded(lambda: NgramEmbedding("embed", sizes=[3], buckets=20), tmp_path)


class Scaled(nn.Embedding):
    def forward(self, tokens):
        return 2 * super().forward(tokens)


def several():
    return nn.ModuleDict({"wte": nn.Embedding(9, 4), "wpe": nn.Embedding(6, 4), "head": nn.Linear(4, 9)})


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        (several(), {}, r"2 embeddings, 'wte' \(9, 4\), 'wpe' \(6, 4\), .* write embedding='wte', or another"),
        (several(), {"embedding": "wt"}, r"embedding='wt' is not a module of ModuleDict; did you mean 'wte'\?"),
        (several(), {"embedding": "head"}, "'head' is a Linear, not a Embedding, of which .* has 'wte', 'wpe'"),
        (nn.Sequential(Scaled(9, 4)), {}, "'0' is a Scaled, which may compute something else"),
    ],
)
def test_which_embedding_is_not_guessed(model, arguments, said):
    with pytest.raises(ArgumentError, match=said):
        apply_ngram_embedding(model, **arguments)


def test_the_embedding_that_is_named_is_replaced_and_after_that_none():
    model = several()
    assert apply_ngram_embedding(model, embedding="wte") == ["wte"]
    assert apply_ngram_embedding(model) == apply_ngram_embedding(model, embedding="wte") == []


def test_tokens_without_rows_are_refused():
    with pytest.raises(ArgumentError, match=r"got tokens of shape \(5,\), .* give rows of tokens, \(n, length\)"):
        made()(torch.arange(5))
