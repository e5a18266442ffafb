"""Attention as it happens in models that know nothing of us."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import sonde
from sonde.metrics.torch import attention as terms


class Attention(nn.Module):
    """One of each way in which people write it."""

    def __init__(self, how, width=16, heads=4, kv_heads=4):
        super().__init__()
        self.how, self.heads, self.kv_heads, self.d = how, heads, kv_heads, width // heads
        self.q = nn.Linear(width, heads * self.d)
        self.k = nn.Linear(width, kv_heads * self.d)
        self.v = nn.Linear(width, kv_heads * self.d)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask=None):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, self.d).transpose(1, 2)
        k = self.k(x).view(b, t, self.kv_heads, self.d).transpose(1, 2)
        v = self.v(x).view(b, t, self.kv_heads, self.d).transpose(1, 2)
        self.seen = (q.detach(), k.detach(), v.detach())
        y = WAYS[self.how](q, k, v, mask)
        self.result = y.detach()
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


def by_hand(q, k, v, mask, softmax=F.softmax):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.matmul(F.dropout(softmax(scores, dim=-1), 0.1), v)


def by_einsum(q, k, v, mask):
    scores = torch.einsum("bhld,bhsd->bhls", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.einsum("bhls,bhsd->bhld", scores.softmax(-1), v)


def by_operators(q, k, v, mask):
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + torch.where(mask, 0.0, -math.inf)
    return torch.softmax(scores, -1) @ v


WAYS = {
    "sdpa": lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.1),
    "by name": lambda q, k, v, mask: imported_by_name(q, k, v, attn_mask=mask),
    "by hand": by_hand,
    "einsum": by_einsum,
    "operators": by_operators,
}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def listened(watching, model, x, *more, **options):
    torch.manual_seed(1)
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, **options)
    watch.add_metric("attention")
    out = model(x, *more)
    (out[0] if isinstance(out, tuple) else out).square().sum().backward()
    optimizer.step()
    found = watch.metrics()
    watch.close()
    return {k: v for k, v in found.items() if k.startswith("attention_")}, memory


def of_call(call, path):
    """What should be found, by the functions that have tests of their own."""
    expected = {}
    raw = terms.of_call(call)
    for term, values in terms.finish(raw).items():
        whole = values.max() if term == "max_logit" else values.mean()
        expected[f"attention_{term}/{path}"] = whole.item()
        for h, value in enumerate(values):
            expected[f"attention_{term}/{path}.head_{h}"] = value.item()
    return expected


def batch(b=2, t=6, width=16, seed=0):
    return torch.randn(b, t, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("masked", [False, True])
def test_every_way_of_writing_it_gives_the_same(watching, how, masked):
    torch.manual_seed(0)
    model = nn.ModuleDict({"attn": Attention(how)})["attn"]
    mask = torch.ones(6, 6, dtype=torch.bool).tril() if masked else None
    found, memory = listened(watching, model, batch(), mask)
    q, k, v = model.seen
    expected = of_call(terms.AttentionCall(q, k, mask), "[root module]")
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    if how == "einsum":
        return  # which operand is which is not known
    sketches = memory.at(0)
    for h in range(4):
        for name, x in (("query", q), ("key", k), ("value", v), ("output", model.result)):
            sketch = sketches[f"./attach/head_{h}.{name}"]
            assert sketch.count == x[:, h].numel()
            assert sketch.sum == pytest.approx(x[:, h].double().sum().item(), abs=1e-5)
            assert sketch.max == pytest.approx(x[:, h].max().item())


def test_heads_of_sequences_of_any_length_go_into_the_same_rows(watching):
    """Of one sequence, a head lies dense in memory: all of them are read in one go."""
    model = Attention("sdpa")
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    watch.add_metric("attention")
    lengths = [6, 6, 9, 3, 6]
    for t in lengths:
        model(batch(1, t)).square().sum().backward()
        with torch.no_grad(), watch.phase("eval"):
            model(batch(1, 2 * t))
        optimizer.step()
    n_rows = sum(rows._next for rows in watch._session.capture.recorder._devices.values())
    watch.close()
    for step, t in enumerate(lengths):
        for phase, length in (("train", t), ("eval", 2 * t)):
            for h in range(4):
                for name in ("query", "key", "value", "output"):
                    sketch = memory.at(step, phase)[f"./attach/head_{h}.{name}"]
                    assert sketch.count == 4 * length
    assert n_rows < 2 * 16 + 60


def test_attention_of_several_forms_in_one_call_takes_no_more_rows_each_time(watching):
    class Both(nn.Module):
        def forward(self, x):
            q = x.unflatten(-1, (4, 4)).transpose(1, 2).contiguous()
            sonde.attention(q, q, q)  # nothing is known of what comes out
            return F.scaled_dot_product_attention(q, q, q)

    model = nn.Sequential(nn.Linear(16, 16), Both())
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    watch.add_metric("attention")
    used = []
    for _ in range(5):
        model(batch(1)).square().sum().backward()
        optimizer.step()
        used.append(sum(r._next for r in watch._session.capture.recorder._devices.values()))
    watch.close()
    assert used[1:] == used[1:2] * 4
    counts = [memory.at(i)["1/attach/head_2.query"].count for i in range(5)]
    assert counts == [2 * 6 * 4] * 5


def test_grouped_heads(watching):
    class Grouped(Attention):
        def forward(self, x):
            b, t, _ = x.shape
            q = self.q(x).view(b, t, 4, 4).transpose(1, 2)
            k, v = (f(x).view(b, t, 2, 4).transpose(1, 2) for f in (self.k, self.v))
            self.seen = (q.detach(), k.detach())
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
            return self.out(y.transpose(1, 2).reshape(b, t, -1))

    model = Grouped("sdpa", kv_heads=2)
    found, memory = listened(watching, model, batch())
    expected = of_call(terms.AttentionCall(*model.seen, is_causal=True, scale=0.3), "[root module]")
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    heads = {n for n in memory.at(0) if n.startswith("./attach/")}
    assert len(heads) == 4 + 2 + 2 + 4


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_of_torch(watching, need_weights, batch_first):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=batch_first)

        def forward(self, x, other):
            return self.attn(x, other, other, need_weights=need_weights)[0]

    torch.manual_seed(0)
    model = Model()
    x, other = batch(2, 6), batch(2, 9, seed=1)  # cross-attention
    if not batch_first:
        x, other = x.transpose(0, 1), other.transpose(0, 1)
    found, _ = listened(watching, model, x, other)
    if not batch_first:
        x, other = x.transpose(0, 1), other.transpose(0, 1)
    w, b = model.attn.in_proj_weight.detach(), model.attn.in_proj_bias.detach()
    fresh = Model()
    torch.manual_seed(0)
    fresh = Model()  # as it was before the step
    w, b = fresh.attn.in_proj_weight.detach(), fresh.attn.in_proj_bias.detach()
    q = F.linear(x, w[:16], b[:16]).view(2, 6, 4, 4).transpose(1, 2)
    k = F.linear(other, w[16:32], b[16:32]).view(2, 9, 4, 4).transpose(1, 2)
    expected = of_call(terms.AttentionCall(q, k), "attn")
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_flex_attention(watching):
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = self.qkv(x).view(2, 16, 3, 4, 4).permute(2, 0, 3, 1, 4)
            self.seen = (q.detach(), k.detach())
            mask = flex.create_block_mask(causal, 2, 4, 16, 16, device="cpu")
            q, k, v = q.detach(), k.detach(), v.detach()  # there is no gradient of it on a CPU
            return flex.flex_attention(q, k, v, score_mod=alibi, block_mask=mask)

    def causal(b, h, q, k):
        return q >= k

    def alibi(score, b, h, q, k):
        return score - (q - k) * 0.1 * (h + 1)

    model = Model()
    watch, _ = watching(model)
    watch.add_metric("attention")
    model(batch(2, 16))
    watch.step()
    found = {k: v for k, v in watch.metrics().items() if k.startswith("attention_")}
    q, k = model.seen
    i = torch.arange(16)
    bias = -(i[:, None] - i) * 0.1 * torch.arange(1, 5)[:, None, None]
    expected = of_call(
        terms.AttentionCall(q, k, bias.masked_fill(i > i[:, None], -math.inf)), "[root module]"
    )
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_softmax_that_is_no_attention_is_not_taken_for_it(watching):
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 16, 5))

        def forward(self, x):
            gates = torch.bmm(x, self.w).softmax(-1)
            return x * gates.max(-1, keepdim=True).values

    found, memory = listened(watching, Router(), batch())
    assert found == {}
    assert memory.counted("failed") == {}


def test_own_kernels_tell_of_themselves(watching):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = self.qkv(x).view(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4)
            self.seen = (q.detach(), k.detach())
            y = v.cumsum(2)
            sonde.attention(q, k, v, output=y, is_causal=True)
            return y

    model = Own()
    model(batch())  # nobody watches
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    model(batch()).sum().backward()
    optimizer.step()
    watch.close()
    expected = of_call(terms.AttentionCall(*model.seen, is_causal=True), "[root module]")
    assert watch.metrics() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert "./attach/head_3.output" in memory.at(0)


def test_micro_batches_are_one_batch(watching):
    def found(*parts):
        torch.manual_seed(0)
        model = Attention("sdpa")
        optimizer = sgd(model)
        watch, _ = watching(model, optimizer)
        watch.add_metric("attention")
        for x in parts:
            model(x).sum().backward()
        optimizer.step()
        return watch.metrics()

    x = batch(8)
    assert found(x[:1], x[1:4], x[4:]) == pytest.approx(found(x), rel=1e-6)


def test_long_sequences_are_sampled_and_the_run_says_so(watching):
    model = Attention("sdpa")
    _, memory = listened(watching, model, batch(1, 600))
    told = [e for e in memory.events if e.code == "sampled"]
    assert [e.message for e in told] == ["attention was looked at for 200 of 600 queries"]


def test_where_and_every(watching):
    model = nn.Sequential(Attention("sdpa"), Attention("by hand"))
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("attention", where="1", every=2)
    for _ in range(3):
        model(batch()).sum().backward()
        optimizer.step()
    assert {k.split("/")[1].split(".")[0] for k in watch.metrics(0)} == {"1"}
    assert watch.metrics(1) == {}
    assert watch.metrics(2)


def test_torch_is_as_it_was_when_nobody_listens(watching):
    names = [
        (F, "scaled_dot_product_attention"),
        (F, "softmax"),
        (torch, "matmul"),
        (torch, "einsum"),
    ]
    before = [getattr(o, n) for o, n in names]
    own = [vars(torch.Tensor).get(n) for n in ("softmax", "matmul", "__matmul__", "bmm")]
    here = imported_by_name
    model = Attention("sdpa")
    watch, _ = watching(model)
    watch.add_metric("attention")
    assert F.softmax is not before[1]
    watch.close()
    assert [getattr(o, n) for o, n in names] == before
    assert [vars(torch.Tensor).get(n) for n in ("softmax", "matmul", "__matmul__", "bmm")] == own
    assert imported_by_name is here


def test_outside_of_the_model_nothing_is_heard(watching):
    model = Attention("sdpa")
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, log="parameters")
    watch.add_metric("attention")
    q = torch.randn(1, 2, 3, 4)
    F.scaled_dot_product_attention(q, q, q)
    (q @ q.mT).softmax(-1) @ q
    optimizer.step()
    assert watch.metrics() == {}


@pytest.mark.parametrize("how", ["sdpa", "by hand"])
def test_training_is_untouched(watching, how):
    def result(watched):
        torch.manual_seed(0)
        model = nn.Sequential(Attention(how), nn.Dropout(0.3), Attention(how))
        optimizer = sgd(model)
        if watched:
            watch, _ = watching(model, optimizer)
            watch.add_metric("attention")
        for i in range(3):
            model(batch(seed=i)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in model.parameters()], torch.get_rng_state()

    (plain, numbers), (watched, others) = result(False), result(True)
    assert torch.equal(numbers, others)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_compiled_models_compile_as_ever(watching):
    """Nothing is heard inside compiled code, and nothing breaks."""
    model = Attention("sdpa")
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("attention")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(batch()).sum().backward()
        optimizer.step()
    assert not [k for k in watch.metrics() if k.startswith("attention_")]


# -- models that we did not write --------------------------------------------------------------

transformers = pytest.importorskip("transformers")

MODELS = {
    "gpt2": lambda: transformers.GPT2Config(
        n_layer=2,
        n_head=4,
        n_embd=32,
        vocab_size=50,
        n_positions=32,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0.0,
    ),
    "llama": lambda: transformers.LlamaConfig(
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=50,
    ),
    "t5": lambda: transformers.T5Config(
        decoder_start_token_id=0,
        num_layers=2,
        num_heads=4,
        d_model=32,
        d_kv=8,
        d_ff=64,
        vocab_size=50,
        dropout_rate=0.0,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_implementations_of_transformers_agree(watching, name):
    def found(implementation):
        torch.manual_seed(0)
        config = MODELS[name]()
        config._attn_implementation = implementation
        if name == "t5":
            model = transformers.T5ForConditionalGeneration(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config)
        assert model.config._attn_implementation == implementation
        tokens = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(0))
        optimizer = sgd(model)
        watch, memory = watching(model, optimizer, log="parameters")
        watch.add_metric("attention")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        watch.close()
        assert memory.counted("failed") == {}
        return {k: v for k, v in watch.metrics().items() if k.startswith("attention_")}

    eager, sdpa = found("eager"), found("sdpa")
    layers = 2 if name != "t5" else 6  # encoder, decoder, and across
    assert len(eager) == layers * 4 * (4 + 1)
    assert eager == pytest.approx(sdpa, rel=1e-4, abs=1e-5)
    entropy = [v for k, v in eager.items() if "entropy" in k]
    assert all(0 < v < math.log(12) + 1e-6 for v in entropy)
