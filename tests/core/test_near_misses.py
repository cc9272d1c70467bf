# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which names are taken for another one that was meant."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale_caps import QUERIES, query_names
from metrale_caps.audit.near_misses import intended_name, opposite_query
from metrale_caps.layer import FORWARD_STUBS


def ref_slips(first: str, second: str) -> int:
    """Letters to be changed, put in, left out or swapped, each place once: the definition, without a table."""

    @functools.cache
    def slips(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        ways = [slips(i - 1, j) + 1, slips(i, j - 1) + 1, slips(i - 1, j - 1) + (first[i - 1] != second[j - 1])]
        if i > 1 and j > 1 and (first[i - 2], first[i - 1]) == (second[j - 1], second[j - 2]):
            ways.append(slips(i - 2, j - 2) + 1)
        return min(ways)

    return slips(len(first), len(second))


def ref_has_another_word(name: str, query: str) -> bool:
    """Whether a word of up to three letters has two slips or more."""
    words, meant = name.split("_"), query.split("_")
    pairs = zip(words, meant, strict=True) if len(words) == len(meant) else ()
    return any(len(other) <= 3 and ref_slips(word, other) > 1 for word, other in pairs)


@st.composite
def _slipped(draw: st.DrawFn) -> tuple[str, str]:
    """A query, and its name after up to four slips."""
    query = draw(st.sampled_from(query_names()))
    name = str(query)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(name) - 1))
        letter = draw(st.sampled_from("_aelsz"))
        name = draw(
            st.sampled_from(
                [
                    name[:at] + letter + name[at:],
                    name[:at] + name[at + 1 :],
                    name[:at] + letter + name[at + 1 :],
                    name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :],
                ]
            )
        )
    return query, name


@given(_slipped())
def test_name_is_a_slip_if_it_is_at_most_two_letters_away(slipped: tuple[str, str]) -> None:
    """By the definition of a slip; what is further away, private or a name of the contract itself is left alone."""
    query, name = slipped
    near = ref_slips(name, query) <= 2 and not ref_has_another_word(name, query)
    near = near or name.replace("_", "") == query.replace("_", "")
    left_alone = name in QUERIES or name in FORWARD_STUBS or name.startswith("_")
    assert (intended_name(name, ()) == query) is (near and not left_alone)


@pytest.mark.parametrize(
    ("name", "intended"),
    [
        ("isSsmLayer", "is_ssm_layer"),
        ("IS_SSM_LAYER", "is_ssm_layer"),
        ("i_s_s_s_m_l_a_y_e_r", "is_ssm_layer"),
        ("si_ssm_layre", "is_ssm_layer"),
        ("is_ssm_lay", "is_ssm_layer"),
        ("is_ssm_la", None),
        ("is_ssm_layer_now", None),
        ("decodeMultiSeq", "decode_multi_seq"),
        ("decode_mutli_seq", "decode_multi_seq"),
        ("decode_mult_se", None),
        ("decode_verify_mulit", "decode_verify_multi"),
        ("prefill_phase2", None),
        ("prefill_phase", None),
        ("decod", "decode"),
        ("decodee", "decode"),
        ("deocde", "decode"),
        ("deCode", "decode"),
        ("prefil", "prefill"),
        ("pre_fill", "prefill"),
        ("preffill", "prefill"),
        ("capability_part", "capability_parts"),
        ("capabilities_parts", None),
        ("capabilty_part", "capability_parts"),
        ("capability_parts", None),
        *(
            (other, None)
            for other in ("decoder", "decodes", "encode", "recode", "decide", "decade", "DECODE", "decode_")
        ),
        *((other, None) for other in ("decade", "Decode", "refill", "prefills", "prefilled", "PREFILL")),
        *((f"is_{other}_layer", None) for other in ("dsa", "qsa", "swa", "mm")),
        ("is_ssmm_layer", "is_ssm_layer"),
        ("_is_ssm_layre", None),
        ("is_ssm_layer", None),
    ],
)
def test_name_that_was_meant(name: str, intended: str | None) -> None:
    """Case and underscores do not matter; two slips for a query, one for a forward method with a long name."""
    assert intended_name(name, ()) == intended


def test_name_beside_the_one_it_resembles_is_its_own() -> None:
    """A class that has both meant both."""
    assert intended_name("is_ssm_layers", {"is_ssm_layer"}) is None
    assert intended_name("is_ssm_layers", {"uses_ssm_pool"}) == "is_ssm_layer"


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("decode_graph_supported", "decode_graph_unsupported"),
        ("supports_decode_graph", "decode_graph_unsupported"),
        ("supportsDecodeGraph", "decode_graph_unsupported"),
        ("decode_verify_multi_supported", "decode_verify_multi_unsupported"),
        ("replay_tail_split_unsupported", "supports_replay_tail_split"),
        ("_decode_graph_supported", None),
        ("decode_graph_unsupported", None),
        ("decode_graph_suported", None),
        ("supports_ssm_pool", None),
        ("unsupported", None),
    ],
)
def test_name_that_means_the_opposite(name: str, query: str | None) -> None:
    """Who writes it has to turn the answer round, not only the name."""
    assert opposite_query(name) == query
