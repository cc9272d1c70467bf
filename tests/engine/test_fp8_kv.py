# SPDX-License-Identifier: MIT OR Apache-2.0
"""An FP8 cache: its scales are found while the engine runs, hold on every path, and graphs wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from metrale_caps import capability_of
from metrale_caps.engine import Engine, EngineOptions
from metrale_caps.errors import ConfigurationError, KvScaleError
from metrale_caps.routing.decision import LayerReason
from tests.engine.steps import TEXT, Steps, make_decoder, with_layer
from tests.tiny_models import make_model

if TYPE_CHECKING:
    from metrale_caps import PagedKv

_FP8_ERROR = 0.06
"""Of the logits' spread: a code is off by 2^-5 on average at most, and errors of many keys average out."""
_SCALES = {0: (0.25, 0.5), 1: (0.25, 0.5)}


@pytest.fixture(scope="module")
def deep_llama() -> Any:
    """A tiny Llama with a layer between the first and the last."""
    return make_model("llama", 14, rms_norm_eps=1e-5, num_hidden_layers=3)


def _fp8(model: Any, kernels: str = "naive", **options: Any) -> Steps:
    return Steps(make_decoder(model, kernels), kv_dtype="fp8", **options)


def _codes(pages: tuple[PagedKv | None, ...]) -> list[torch.Tensor]:
    """Numbers in all pages, as attention reads them."""
    found: list[torch.Tensor] = []
    for kv in pages:
        assert kv is not None
        key_scale, value_scale = kv.scales()
        found += [kv.keys[:-1].float() * key_scale, kv.values[:-1].float() * value_scale]
    return found


def _largest(steps: Steps) -> list[tuple[float, float]]:
    """Largest key and value of each layer over a sequence in slot 0."""
    (sequence,) = steps.sequences.values()
    blocks = sequence.blocks
    peaks: list[tuple[float, float]] = []
    for kv in steps.runner.pages:
        assert kv is not None
        keys, values = (tensor[blocks].flatten(0, 1)[: sequence.cursor] for tensor in (kv.keys, kv.values))
        peaks.append((keys.abs().max().item(), values.abs().max().item()))
    return peaks


def _last_logits(steps: Steps, way: str) -> torch.Tensor:
    """Logits of token 33, computed in one of three ways."""
    if way == "decode":
        steps.start(0, TEXT[:32])
        return steps.decode([0], [TEXT[32]])[0][0]
    sequence = steps.start(0, TEXT[:1])
    sequence.tokens = list(TEXT[:33])
    logits = steps.prefill(sequence, chunk=64 if way == "prefill" else 16)
    assert logits is not None
    return logits[0]


@pytest.mark.parametrize("kernels", ["naive", "triton"])
def test_every_path_applies_both_scales(tiny_llama: Any, reference_logits: Any, kernels: str) -> None:
    """One prefill, chunks, and prefill with a decode step agree with each other and with fp32, to FP8 error."""
    expected = reference_logits(tiny_llama, TEXT[:33])[-1]
    found = {
        way: _last_logits(_fp8(tiny_llama, kernels, fp8_kv_scales=_SCALES), way)
        for way in ("prefill", "chunks", "decode")
    }
    spread = expected.std()
    for logits in found.values():
        assert (logits - expected).pow(2).mean().sqrt() < _FP8_ERROR * spread
        torch.testing.assert_close(logits, found["prefill"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kernels", ["naive", "triton"])
@pytest.mark.parametrize("way", ["prefill", "decode", "replay"])
def test_scale_is_read_where_it_lies_by_every_path(tiny_llama: Any, kernels: str, way: str) -> None:
    """Another number in the same place shows in the next step, however that runs."""

    def logits(factor: float) -> torch.Tensor:
        steps = _fp8(tiny_llama, kernels, fp8_kv_scales=_SCALES, decode_graphs=way == "replay")
        sequence = steps.start(0, TEXT[:20])
        if way == "replay":
            steps.decode([0], [TEXT[20]])
        for kv in steps.runner.pages:
            assert kv is not None
            kv.scales()[1].mul_(factor)
        if way == "prefill":
            sequence.tokens.append(TEXT[21])
            found = steps.prefill(sequence)
            assert found is not None
            return found[0]
        found, (route,) = steps.decode([0], [TEXT[21]])
        assert ("replayed" in route.route) == (way == "replay")
        return found[0]

    unchanged = logits(1.0)
    assert (logits(4.0) - unchanged).abs().max() > 0.1 * unchanged.std()


def test_warm_up_counts_for_nothing_and_the_scales_cover_what_comes(tiny_llama: Any) -> None:
    """Only a real prompt fills the window; until then no step is captured."""
    steps = _fp8(tiny_llama, fp8_calibration_tokens=24)
    steps.runner.warm_up()
    layers = steps.runner.plan.layers
    assert [capability_of(layer, "fp8_calibration_frozen") for layer in layers] == [False, False]
    steps.start(0, TEXT[:20])
    _, (route,) = steps.decode([0], [TEXT[20]])
    assert "eager" in route.route
    assert [reason.layer_index for reason in route.reasons if isinstance(reason, LayerReason)] == [0, 1]
    assert "fp8_calibration_frozen = False" in str(route)
    for at in range(21, 24):
        steps.decode([0], [TEXT[at]])
    assert [capability_of(layer, "fp8_calibration_frozen") for layer in layers] == [True, True]
    assert steps.counters.fp8_calibrations_frozen == 2
    plain = Steps(make_decoder(tiny_llama))
    plain.start(0, TEXT[:20])
    for at in range(20, 24):
        plain.decode([0], [TEXT[at]])
    for kv, peaks in zip(steps.runner.pages, _largest(plain), strict=True):
        assert kv is not None
        for scale, peak in zip(kv.scales(), peaks, strict=True):
            assert 448 * scale.item() == pytest.approx(peak, rel=0.1)  # later layers see what FP8 made of earlier ones
    _, (route,) = steps.decode([0], [TEXT[24]])
    assert "captured" in route.route
    _, (route,) = steps.decode([0], [TEXT[25]])
    assert "replayed" in route.route


def test_short_prompts_and_single_steps_fill_the_window(tiny_llama: Any) -> None:
    """The window is counted over requests, so that it ends even where no prompt is long."""
    engine = Engine(make_decoder(tiny_llama), options=EngineOptions(kv_dtype="fp8", fp8_calibration_tokens=20))
    for _ in range(4):
        engine.generate([[5, 6, 7]], max_new_tokens=4, ignore_eos=True)
    assert engine.counters.fp8_calibrations_frozen == 2
    assert engine.counters.graph_captures > 0


@pytest.mark.parametrize("calibrates", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("slots", [[0], [0, 1, 2]])
def test_one_layer_that_is_not_frozen_holds_back_every_graph(
    deep_llama: Any, calibrates: int, slots: list[int]
) -> None:
    """Of one sequence and of a batch, and names itself; the others have their scales."""
    given = {index: (0.05, 0.05) for index in range(3) if index != calibrates}
    steps = _fp8(deep_llama, fp8_kv_scales=given, fp8_calibration_tokens=20)
    for slot in slots:
        steps.start(slot, TEXT[slot : slot + 4])
    while steps.counters.fp8_calibrations_frozen == 0:
        _, routes = steps.decode(slots, TEXT[: len(slots)])
        for route in routes:
            assert "eager" in route.route
            assert f"layer {calibrates} " in str(route)
            assert len(route.reasons) == 1
    assert steps.counters.graph_captures == 0
    _, routes = steps.decode(slots, TEXT[: len(slots)])
    assert "captured" in routes[0].route
    assert routes[0].reasons == ()


@pytest.mark.parametrize("kernels", ["naive", "triton"])
def test_freeze_in_the_middle_changes_nothing_cached_beyond_fp8_error(tiny_llama: Any, kernels: str) -> None:
    """What was cached before reads the same at the new scales, to the error of two roundings."""
    steps = _fp8(tiny_llama, kernels, fp8_calibration_tokens=24, fp8_kv_headroom=1.4)
    steps.start(0, TEXT[:16])
    at = 16
    before = _codes(steps.runner.pages)
    while steps.counters.fp8_calibrations_frozen == 0:
        before = _codes(steps.runner.pages)
        steps.decode([0], [TEXT[at]])
        at += 1
    assert at == 24
    written = torch.zeros(before[0].shape[0] * 16, dtype=torch.bool)
    written[: at - 1] = True  # slot 0 has the first blocks
    for was, now in zip(before, _codes(steps.runner.pages), strict=True):
        old, new = (tensor.flatten(0, 1)[written] for tensor in (was, now))
        assert ((old - new).abs() <= new.abs() * 2**-3 + new.abs().max() * 2**-16).all()
        assert not torch.equal(old, new)  # they were written again


def test_replay_equals_eager_in_fp8(tiny_llama: Any) -> None:
    """To the bit, from the freeze on, in a padded batch too."""
    replayed = _fp8(tiny_llama, "triton", fp8_calibration_tokens=10)
    eager = _fp8(tiny_llama, "triton", fp8_calibration_tokens=10, decode_graphs=False)
    for steps in (replayed, eager):
        for slot in range(3):
            steps.start(slot, TEXT[slot : slot + 5 + slot])
    for step in range(20):
        slots = [[0], [2, 0, 1]][step % 2]
        tokens = TEXT[step : step + len(slots)]
        assert torch.equal(replayed.decode(slots, tokens)[0], eager.decode(slots, tokens)[0])
    assert replayed.counters.graph_replays == 18


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_given_scale_that_cannot_be_used_is_refused(tiny_llama: Any, scale: float) -> None:
    """Before anything runs, with the layer's name."""
    with pytest.raises(KvScaleError, match=r"key scale of layer 1 \(GroupedQueryAttentionLayer\)"):
        _fp8(tiny_llama, fp8_kv_scales={1: (scale, 1.0)})


class NoFp8:
    """A layer over an inner one, without FP8 pages."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def kv_cache_spec(self) -> Any:
        return self.inner.kv_cache_spec()

    def decode_verify_multi_unsupported(self) -> bool:
        return True

    def decode(self, hidden: Any, context: Any, /) -> Any:
        return self.inner.decode(hidden, context)


class HidesItsCalibration(NoFp8):
    """Has FP8 pages with a calibration that it does not tell of."""

    def use_fp8_kv(self, calibration: Any, /) -> None:
        self.calibration = calibration


def test_layer_without_fp8_pages_keeps_its_own_type(tiny_llama: Any) -> None:
    """Beside one that has them."""
    decoder, _ = with_layer(make_decoder(tiny_llama), 1, NoFp8)
    steps = Steps(decoder, kv_dtype="fp8")
    assert [kv.keys.dtype for kv in steps.runner.pages if kv is not None] == [torch.float8_e4m3fn, torch.float32]


def test_layer_that_hides_its_calibration_is_refused(tiny_llama: Any) -> None:
    """Graphs would be captured inside its window, which then never ends."""
    decoder, _ = with_layer(make_decoder(tiny_llama), 1, HidesItsCalibration)
    with pytest.raises(ConfigurationError, match=r"layer 1 \(.*HidesItsCalibration\) answers None"):
        Steps(decoder, kv_dtype="fp8")


def test_layers_serve_one_engine_with_fp8_pages(tiny_llama: Any) -> None:
    """Two would calibrate each other's pages."""
    decoder = make_decoder(tiny_llama)
    Steps(decoder, kv_dtype="fp8")
    with pytest.raises(ConfigurationError, match="for an engine already"):
        Steps(decoder, kv_dtype="fp8")


def test_layers_with_fp8_pages_do_not_serve_an_engine_without(tiny_llama: Any) -> None:
    """Their calibration would never end there, and no step would ever be captured."""
    decoder = make_decoder(tiny_llama)
    Engine(decoder, options=EngineOptions(kv_dtype="fp8"))
    with pytest.raises(ConfigurationError, match=r"layer 0 .* has no FP8 pages here: .* build the model anew"):
        Engine(decoder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv_dtype": "int8"}, "kv_dtype is 'int8'"),
        ({"fp8_calibration_tokens": -1}, "fp8_calibration_tokens is -1"),
        ({"fp8_kv_headroom": 0.5}, "fp8_kv_headroom is 0.5"),
        ({"fp8_kv_scales": {0: (1.0, 1.0)}}, "kv_dtype is not 'fp8'"),
    ],
)
def test_option_that_cannot_be_used_is_refused(options: dict[str, Any], says: str) -> None:
    """By name."""
    with pytest.raises(ConfigurationError, match=says):
        EngineOptions(**options)


def test_scales_for_a_layer_without_fp8_pages_are_refused(tiny_llama: Any) -> None:
    """There would be nothing they belong to."""
    with pytest.raises(ConfigurationError, match="layer 9, which has no FP8 pages"):
        _fp8(tiny_llama, fp8_kv_scales={9: (1.0, 1.0)})
    decoder = make_decoder(tiny_llama)
    for position in range(2):
        decoder, _ = with_layer(decoder, position, NoFp8)
    with pytest.raises(ConfigurationError, match="no layer of this model"):
        Steps(decoder, kv_dtype="fp8")
