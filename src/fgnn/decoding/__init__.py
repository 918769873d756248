"""Decoding: parity-check codes, and the detector error models of quantum circuits.

`read_code` and `read_circuit` read files, `decode` decodes a batch, `simulate` measures error rates.
"""

from fgnn.decoding.channels import AWGN, BSC, Bursts, Channel, Erasure, noise_of
from fgnn.decoding.circuit import parse_dem, read_circuit, sample_circuit
from fgnn.decoding.code import Code
from fgnn.decoding.decode import METHODS, Decoded, decode
from fgnn.decoding.learned import LearnedDecoder
from fgnn.decoding.problem import Problem
from fgnn.decoding.read import read_code
from fgnn.decoding.simulate import ErrorRate, simulate
from fgnn.decoding.sinter import sinter_decoders

__all__ = [
    "AWGN",
    "BSC",
    "METHODS",
    "Bursts",
    "Channel",
    "Code",
    "Decoded",
    "Erasure",
    "ErrorRate",
    "LearnedDecoder",
    "Problem",
    "decode",
    "noise_of",
    "parse_dem",
    "read_circuit",
    "read_code",
    "sample_circuit",
    "simulate",
    "sinter_decoders",
]
