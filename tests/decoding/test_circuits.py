"""Detector error models: parsing, splitting by basis, sampling."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn.decoding import read_circuit, sample_circuit
from fgnn.decoding.circuit import parse_dem
from fgnn.errors import InputError

MODEL = """
error(0.1) D0 D1  # two detectors
error[tag](0.2) D1 ^ D1 D2 L0
repeat 2 {
    error(0.25) D0 L1
    shift_detectors(0, 1) 3
}
detector(1, 2) D3
logical_observable L3
"""


def test_a_model_is_parsed_with_shifts_repetition_and_cancelled_targets() -> None:
    problem = parse_dem(MODEL)
    assert (problem.code.num_checks, problem.code.num_bits) == (10, 4)
    assert problem.observables is not None
    assert problem.observables.num_checks == 4
    starts, edges = problem.code.by_bit
    columns = [problem.code.checks[edges[a:b]].tolist() for a, b in pairwise(starts)]
    assert columns == [[0, 1], [2], [0], [3]]
    assert np.allclose(1 / (1 + np.exp(problem.prior)), [0.1, 0.2, 0.25, 0.25])


def test_errors_with_one_symptom_are_merged_by_their_parity() -> None:
    problem = parse_dem("error(0.1) D0\nerror(0.2) D0\n")
    assert np.allclose(1 / (1 + np.exp(problem.prior)), [0.1 * 0.8 + 0.2 * 0.9])


BROKEN = {
    "empty": "",
    "no detector": "error(0.1) L0",
    "word": "mistake(0.1) D0",
    "probability": "error(1.5) D0",
    "certain": "error(1) D0",
    "not a number": "error(x) D0",
    "target": "error(0.1) X0",
    "open": "repeat 3 {\nerror(0.1) D0",
    "closed": "error(0.1) D0\n}",
    "endless": "repeat 999999999999 {\nerror(0.1) D0\n}",
    "far": "error(0.1) D999999999999",
    "shift": "shift_detectors 99999999999\nerror(0.1) D0",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_model_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "model.dem"
    file.write_text(text)
    with pytest.raises(InputError, match=r"model\.dem") as caught:
        read_circuit(file)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="error(0.1) DL^{}\n#repatshif_dco", max_size=120))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        parse_dem(text)


def test_a_css_model_splits_into_the_basis_of_its_observables() -> None:
    # bit flips on a chain of five touch detectors 0-3 and the observable, phase flips detectors 4-7, and both happen
    flips = [f"D{i - 1} D{i}".replace("D-1 ", "").replace("D4", "") for i in range(5)]
    phases = [f"D{i + 3} D{i + 4}".replace("D3 ", "").replace("D8", "") for i in range(5)]
    lines = [f"error(0.01) {a} {'L0' if i == 0 else ''}" for i, a in enumerate(flips)]
    lines += [f"error(0.02) {b}" for b in phases]
    lines += [
        f"error(0.03) {a} {b} {'L0' if i == 0 else ''}" for i, (a, b) in enumerate(product(flips, phases)) if i % 6 == 0
    ]
    whole = parse_dem("\n".join(lines))
    from fgnn.decoding.basis import one_basis

    part = one_basis(whole)
    assert part.kept is not None
    assert part.kept.tolist() == [0, 1, 2, 3]
    assert (part.detectors, part.code.num_bits) == (8, 5)
    p = 1 / (1 + np.exp(part.prior))
    assert np.allclose(sorted(p), sorted([0.01 * 0.97 + 0.03 * 0.99] * 5))  # alone, or with a phase flip


def test_errors_that_look_like_products_at_a_boundary_split_nothing() -> None:
    """D0 D1 is one error in the middle of a chain, not one at each end: D1 must not be forgotten."""
    from fgnn.decoding.basis import one_basis

    chain = parse_dem("error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1")
    assert one_basis(chain) is chain
    stim = pytest.importorskip("stim")
    for task in ("repetition_code:memory", "surface_code:rotated_memory_z", "surface_code:unrotated_memory_x"):
        circuit = stim.Circuit.generated(task, distance=3, rounds=3, after_clifford_depolarization=0.01)
        model = parse_dem(str(circuit.detector_error_model()))
        assert one_basis(model) is model


def test_a_circuit_becomes_the_model_that_stim_computes(tmp_path: Path) -> None:
    stim = pytest.importorskip("stim")
    circuit = stim.Circuit.generated(
        "repetition_code:memory", rounds=3, distance=5, before_round_data_depolarization=0.05
    )
    file = tmp_path / "c.stim"
    circuit.to_file(str(file))
    problem = read_circuit(file, all_detectors=True)
    dem = circuit.detector_error_model()
    assert problem.code.num_checks == dem.num_detectors
    assert problem.code.num_bits == sum(1 for i in dem.flattened() if i.type == "error")
    detectors, observables = sample_circuit(file, 50, seed=1)
    assert detectors.shape == (50, dem.num_detectors)
    assert observables.shape == (50, 1)
    file.write_text("H 0\nNOTAGATE 1\n")
    with pytest.raises(InputError, match=r"c\.stim"):
        read_circuit(file)
