"""Terms of attention against brute force, in float64, written the obvious way."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.metrics.torch import attention


def brute(q, k, mask=None, is_causal=False, scale=None):
    """Terms per head from the whole matrix of weights."""
    q, k = q.double(), k.double()
    if k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    logits = torch.einsum("bhld,bhsd->bhls", q, k) * (scale or q.shape[-1] ** -0.5)
    if is_causal:
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        logits = logits.masked_fill(~allowed, -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    w = logits.softmax(-1)
    h = -(w * (w + 1e-300).log()).sum(-1)
    return {
        "entropy": h.mean((0, 2)),
        "first_token": w[..., 0].mean((0, 2)),
        "effective_context": h.exp().mean((0, 2)),
        "max_logit": logits.amax((0, 2, 3)),
    }


def found(q, k, max_rows=attention.MAX_ROWS, max_elements=attention.MAX_ELEMENTS, **how):
    call = attention.AttentionCall(q, k, **how)
    return attention.finish(attention.of_call(call, max_rows, max_elements))


def assert_terms(a, b, tolerance=1e-5):
    assert set(a) == set(b) == set(attention.TERMS)
    for term in attention.TERMS:
        assert torch.allclose(a[term].double(), b[term].double(), atol=tolerance, rtol=tolerance), (
            f"{term}: {a[term]} is not {b[term]}"
        )


def tensors(b=2, h=4, kh=4, length=7, keys=7, d=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(b, h, length, d, generator=g)
    return q, torch.randn(b, kh, keys, d, generator=g)


def test_uniform_attention_has_the_entropy_of_its_length():
    q, k = tensors()
    terms = found(q * 0, k)
    assert torch.allclose(terms["entropy"], torch.full((4,), math.log(7)).double())
    assert torch.allclose(terms["effective_context"], torch.full((4,), 7.0).double())
    assert torch.allclose(terms["first_token"], torch.full((4,), 1 / 7).double())


def test_causal_uniform_attention_has_the_mean_entropy_of_its_rows():
    q, k = tensors()
    expected = sum(math.log(i + 1) for i in range(7)) / 7
    entropy = found(q * 0, k, is_causal=True)["entropy"]
    assert torch.allclose(entropy, torch.full((4,), expected).double())


def test_one_hot_attention_has_no_entropy():
    q = k = torch.eye(8).expand(2, 3, 8, 8) * 100
    terms = found(q, k)
    assert torch.allclose(terms["entropy"], torch.zeros(3).double(), atol=1e-9)
    assert torch.allclose(terms["effective_context"], torch.ones(3).double())


@given(
    b=st.integers(1, 3),
    groups=st.integers(1, 3),
    kh=st.integers(1, 3),
    length=st.integers(1, 23),
    keys=st.integers(1, 23),
    is_causal=st.booleans(),
    scale=st.sampled_from([None, 1.0, 0.1]),
    pieces=st.integers(1, 500),
    seed=st.integers(0, 9),
)
def test_terms_equal_brute_force(b, groups, kh, length, keys, is_causal, scale, pieces, seed):
    """Grouped heads, cross-attention, any scale, and in pieces of any size."""
    q, k = tensors(b, groups * kh, kh, length, keys, seed=seed)
    assert_terms(
        found(q, k, max_elements=pieces, is_causal=is_causal, scale=scale),
        brute(q, k, is_causal=is_causal, scale=scale),
    )


@pytest.mark.parametrize("shape", [(7, 5), (5,), (1, 5), (1, 1, 7, 5), (2, 1, 7, 5), (2, 4, 7, 5)])
@pytest.mark.parametrize("shape_end", [None, (2, 1, 1, 5), (1, 4, 1, 5), (4, 7, 5)])
@pytest.mark.parametrize("is_boolean", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_masks_of_every_shape_that_broadcasts(shape, shape_end, is_boolean, is_causal):
    q, k = tensors(keys=5)
    g = torch.Generator().manual_seed(1)
    mask = torch.randn(shape_end or shape, generator=g)
    if is_boolean:
        mask = mask > -0.5
        mask[..., 0] = True
    assert_terms(found(q, k, mask=mask, is_causal=is_causal), brute(q, k, mask, is_causal))


def test_queries_that_attend_to_nothing_do_not_count():
    q, k = tensors()
    mask = torch.ones(7, 7, dtype=torch.bool)
    mask[:3] = False
    rest = brute(q[:, :, 3:], k)
    assert_terms(found(q, k, mask=mask), rest)


def test_nan_is_told():
    q, k = tensors()
    q[0, 1, 0, 0] = math.nan
    terms = found(q, k)
    assert terms["entropy"].isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("dims", [2, 3, 5])
def test_any_number_of_leading_dimensions(dims):
    g = torch.Generator().manual_seed(0)
    q = torch.randn((2, 3, 4, 7, 8)[-dims:], generator=g)
    k = torch.randn((2, 3, 4, 7, 8)[-dims:], generator=g)
    heads = 4 if dims == 5 else 1
    flat = [x.reshape(-1, heads, 7, 8) for x in (q, k)]
    assert_terms(found(q, k), brute(*flat))


def test_logits_of_a_model_give_the_same_terms():
    q, k = tensors()
    logits = q @ k.mT * 8**-0.5
    assert_terms(attention.finish(attention.of_logits(logits)), brute(q, k))


def test_joined_calls_are_one_call():
    q, k = tensors(b=8)
    parts = [
        attention.of_call(attention.AttentionCall(q[i], k[i]))
        for i in (slice(1), slice(1, 4), slice(4, 8))
    ]
    joined = attention.join(attention.join(parts[0], parts[1]), parts[2])
    assert_terms(attention.finish(joined), brute(q, k), 1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_sampled_terms_are_close_to_exact_ones_at_length_2048(is_causal, sharpness):
    """The stated error: three standard errors of a mean over so many queries, which is 0.02 nats
    for logits of variance 1. Of the largest logit it is a lower bound."""
    q, k = tensors(1, 2, 2, 2048, 2048, 32)
    q = q * sharpness
    exact = found(q, k, max_rows=2048, is_causal=is_causal)
    sampled = found(q, k, is_causal=is_causal)
    assert attention.sampling(2048).is_whole is False
    assert len(attention.sampling(2048).rows) == 256
    logits = q @ k.mT * 32**-0.5
    if is_causal:
        logits = logits.masked_fill(~torch.ones(2048, 2048, dtype=torch.bool).tril(), -math.inf)
    stated = 3 * torch.special.entr(logits.softmax(-1)).sum(-1).std((0, 2)) / 256**0.5
    assert ((exact["entropy"] - sampled["entropy"]).abs() <= stated).all()
    if sharpness == 1.0:
        assert (exact["entropy"] - sampled["entropy"]).abs().max() <= 0.02
    assert (sampled["max_logit"] <= exact["max_logit"]).all()


@given(length=st.integers(1, 5000), rows=st.integers(1, 300))
def test_sampling_is_even_and_within_its_limit(length, rows):
    chosen = attention.sampling(length, rows).rows
    assert 1 <= len(chosen) <= rows
    assert chosen[0] < chosen.step
    assert chosen[-1] + chosen.step >= length
    assert chosen[-1] < length


def test_no_more_logits_than_the_budget(monkeypatch):
    sizes = []
    real = attention._of_queries
    monkeypatch.setattr(attention, "_of_queries", lambda x: sizes.append(x.numel()) or real(x))
    q, k = tensors(2, 4, 4, 300, 300)
    for is_causal in (False, True):
        sizes.clear()
        found(q, k, max_elements=2 * 4 * 300 * 10, is_causal=is_causal)
        assert max(sizes) <= 2 * 4 * 300 * 10
        assert len(sizes) > 1


def test_keys_that_no_query_sees_are_left_out(monkeypatch):
    sizes = []
    real = attention._of_queries
    monkeypatch.setattr(attention, "_of_queries", lambda x: sizes.append(x.numel()) or real(x))
    q, k = tensors(2, 4, 4, 200, 200)
    assert_terms(found(q, k, is_causal=True), brute(q, k, is_causal=True))
    assert sum(sizes) == 2 * 4 * 50 * (50 + 100 + 150 + 200)
