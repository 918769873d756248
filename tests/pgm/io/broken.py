"""Broken model files, each with the place and the reason that the error must name."""

from __future__ import annotations

import gzip
import lzma

from tests.pgm.io.samples import BIF, CFN, FG, UAI, WCSP, header, native, swap

BIG = b"1000000000000"

Edits = dict[str, tuple[bytes, bytes, str, str]]

# edits of a valid file: old, new, the place, part of the message
UAI_EDITS: Edits = {
    "wrong kind": (b"MARKOV", b"GIBBS", "line 1", "Expected MARKOV or BAYES (got 'GIBBS')"),
    "not utf8": (b" 0.5 1.5", b" 0.5 \xff\xfe", "line 11, table 0", "got '\\xff\\xfe'"),
    "variables not a number": (b"\n3\n", b"\nthree\n", "line 2", "integer (got 'three')"),
    "negative variables": (b"\n3\n", b"\n-3\n", "line 2", "of at least 0 (got -3)"),
    "huge variables": (
        b"\n3\n",
        b"\n" + BIG + b"\n",
        "line 2",
        "declares 1000000000000 cardinalities but the file has only",
    ),
    "overlong integer": (b"\n3\n", b"\n" + b"9" * 5000 + b"\n", "line 2", "an integer"),
    "cardinality 0": (b"2 3 2\n", b"2 0 2\n", "line 3, variable 1", "at least 1 (got '0')"),
    "cardinality real": (b"2 3 2\n", b"2 3.0 2\n", "line 3, variable 1", "got '3.0'"),
    "huge cardinality": (b"2 3 2\n", b"2 " + BIG + b" 2\n", "cardinalities", "declares 1000000000004 states"),
    "huge number of tables": (b"\n4\n", b"\n" + BIG + b"\n", "line 4", "tables but the file"),
    "unknown variable": (b"\n2 0 1\n", b"\n2 0 3\n", "line 6, scope 1", "in 0..2 (got 3)"),
    "negative variable": (b"\n2 0 1\n", b"\n2 0 -1\n", "line 6, scope 1", "in 0..2 (got -1)"),
    "variable real": (b"\n2 0 1\n", b"\n2 0 1.5\n", "line 6, scope 1", "(got '1.5')"),
    "duplicate variable": (b"\n2 0 1\n", b"\n2 1 1\n", "line 6, scope 1", "Expected distinct variables (got 1 1)"),
    "scope too wide": (b"\n2 0 1\n", b"\n40 0 1\n", "line 6, scope 1", "in 0..31 (got 40)"),
    "wrong count": (b"\n6\n 1", b"\n5\n 1", "table 1", "table of 6 entries (got 5)"),
    "nan": (b"0.5 1.5", b"0.5 nan", "line 11, table 0", "finite numbers of at least 0 (got 'nan')"),
    "infinity": (b"0.5 1.5", b"0.5 inf", "line 11, table 0", "(got 'inf')"),
    "overflow": (b"0.5 1.5", b"0.5 1e999", "line 11, table 0", "(got '1e999')"),
    "negative": (b"0.5 1.5", b"-0.5 1.5", "line 11, table 0", "(got '-0.5')"),
    "hexadecimal": (b"0.5 1.5", b"0x5 1.5", "line 11, table 0", "(got '0x5')"),
    "underscore": (b"0.5 1.5", b"0.5 1_5", "line 11, table 0", "(got '1_5')"),
    "comma": (b"0.5 1.5", b"0.5, 1.5", "line 11, table 0", "(got '0.5,')"),
    "word in a table": (b"7 8 9", b"7 eight 9", "line 15, table 2", "(got 'eight')"),
}

# edits of a valid file: old, new, the place, part of the message
FG_EDITS: Edits = {
    "huge": (b"2\n\n2\n", BIG + b"\n\n2\n", "line 2", "declares 1000000000000 factors but"),
    "cardinality 0": (b"\n2 3\n6", b"\n2 0\n6", "line 6, factor 0", "of at least 1 (got 0)"),
    "other cardinality": (b"1\n1\n3\n2", b"1\n1\n4\n2", "line 17, factor 1", "Expected 3 states"),
    "huge cardinality": (b"\n2 3\n6", b"\n99999 99999\n6", "factor 0", "above the limit of 16777216"),
    "duplicate variable": (b"\n0 1\n2 3", b"\n1 1\n3 3", "line 5, factor 0", "distinct variables"),
    "index too large": (b"5 6\n", b"6 6\n", "factor 0, entry 5", "index below 6 (got 6)"),
    "index real": (b"5 6\n", b"4.5 6\n", "factor 0, entry 5", "index below 6 (got 4.5)"),
    "index twice": (b"5 6\n", b"4 6\n", "factor 0", "Expected every index once (got 4 twice"),
    "more entries than cells": (b"\n6\n0 1", b"\n7\n0 1", "line 7, factor 0", "in 0..6 (got 7)"),
    "negative": (b"5 6\n", b"5 -6\n", "line 13, factor 0, entry 5", "(got '-6')"),
    "nan": (b"5 6\n", b"5 NaN\n", "line 13, factor 0, entry 5", "(got 'NaN')"),
}

# edits of a valid file: old, new, the place, part of the message
BIF_EDITS: Edits = {
    "not utf8": (b"consequence", b"cons\xe9quence", "line 2", "Expected UTF-8 text (got byte 0xe9)"),
    "open comment": (b"(no)", b"/* (no)", "line 10, probability of 'Wet'", "(got the end of the file)"),
    "open quote": (b"property x = 1", b'property "x = 1', "line 3", "closing quote"),
    "states": (b"[ 3 ]", b"[ 4 ]", "line 4, variable 'Wet'", "Expected 4 states (got 3)"),
    "no states": (b"[ 3 ]", b"[ 0 ]", "line 4, variable 'Wet'", "number of states"),
    "state twice": (b"dry, damp", b"dry, dry", "line 4, variable 'Wet'", "distinct states"),
    "continuous": (b"discrete [ 3 ]", b"real [ 3 ]", "line 4, variable 'Wet'", "Expected 'discrete'"),
    "variable twice": (b"variable Wet", b"variable Rain", "line 4, variable 'Rain'", "twice"),
    "unknown variable": (b"Wet | Rain", b"Wet | Snow", "line 6", "declared variable (got 'Snow')"),
    "own parent": (b"Wet | Rain", b"Wet | Wet", "line 6, probability of 'Wet'", "distinct"),
    "row missing": (b"(no) 0.9, 0.1, 0.0;", b"", "probability of 'Wet'", "got none for 'no'"),
    "row twice": (b"(no)", b"(yes)", "line 8, probability of 'Wet'", "every row once"),
    "unknown state": (b"(no)", b"(perhaps)", "line 8, probability of 'Wet'", "(got 'perhaps')"),
    "short row": (b"0.1, 0.3, 0.6", b"0.4, 0.6", "line 7, probability of 'Wet'", "3 probabilities (got 2)"),
    "negative": (b"0.1, 0.3, 0.6", b"0.1, -0.3, 1.2", "line 7, probability of 'Wet'", "(got -0.3)"),
    "nan": (b"0.1, 0.3, 0.6", b"0.1, nan, 0.6", "line 7, probability of 'Wet'", "(got 'nan')"),
    "no semicolon": (b"0.6;", b"0.6", "line 8, probability of 'Wet'", "';'"),
    "variable without table": (
        b"probability ( Rain ) { table 0.2, 0.8; }",
        b"",
        "variable 'Rain'",
        "probability block for every variable",
    ),
}

# edits of a valid file: old, new, the place, part of the message
WCSP_EDITS: Edits = {
    "huge": (b"test 3 3", b"test " + BIG + b" 3", "line 1", "declares 1000000000000"),
    "domain 0": (b"\n2 3 2\n", b"\n2 0 2\n", "line 2, variable 1", "got a domain of size 0"),
    "huge domain": (b"\n2 3 2\n", b"\n2 99999999999 2\n", "the variables", "above the limit"),
    "huge tuples": (
        b"2 0 1 1 2\n",
        b"2 0 1 1 " + BIG + b"\n",
        "line 3, cost function 0",
        "declares 3000000000000 numbers but",
    ),
    "bound not a number": (b"3 5 10", b"3 5 ten", "line 1", "(got 'ten')"),
    "unknown variable": (b"2 0 1 1 2", b"2 0 3 1 2", "line 3, cost function 0", "in 0..2 (got 3)"),
    "duplicate variable": (b"2 0 1 1 2", b"2 1 1 1 2", "line 3, cost function 0", "distinct"),
    "state too large": (b"0 2 4", b"0 3 4", "cost function 0, tuple 0", "below 3 (got 3)"),
    "cost real": (b"0 2 4", b"0 2 4.5", "line 4, cost function 0, tuple 0", "(got '4.5')"),
    "unknown rule": (b"1 2 0 1\n1 3", b"1 2 -1 magic 1 3", "line 6, cost function 1", "(got 'magic')"),
    "share of nothing": (b"1 2 0 1\n1 3", b"1 2 0 -1\n", "line 6, cost function 1", "(got -1)"),
    "negative default": (b"2 0 1 1 2", b"2 0 1 -7 2", "line 3, cost function 0", "(got '-7')"),
}

# edits of a valid file: old, new, the place, part of the message
CFN_EDITS: Edits = {
    "no bound": (b"<10.0", b"10.0", "line 1, problem", "Expected a bound such as"),
    "bound nan": (b"<10.0", b"<nan", "line 1, problem", "Expected a bound such as"),
    "variable twice": (b'"b": 3', b'"a": 3', "line 2, variable 1", "'a' twice"),
    "no states": (b'"b": 3', b'"b": 0', "line 2, variable 1", "at least one state"),
    "huge domain": (b'"b": 3', b'"b": 999999999', "the variables", "above the limit"),
    "unknown variable": (b"[a b]", b"[a z]", "line 4, function 'f1'", "a variable (got 'z')"),
    "duplicate variable": (b"[a b]", b"[a a]", "line 4, function 'f1'", "distinct variables"),
    "too few costs": (b"[1, 2, 3, 4, 5, 6]", b"[1, 2, 3]", "line 4, function 'f1'", "6 costs (got 3)"),
    "cost nan": (b"[1, 2, 3,", b"[1, nan, 3,", "line 4, function 'f1'", "(got 'nan')"),
    "cost huge": (b"[1, 2, 3,", b"[1, 1e200, 3,", "line 4, function 'f1'", "(got '1e200')"),
    "unknown state": (b"[q 2.5]", b"[r 2.5]", "line 5, function 1", "(got 'r')"),
    "never shared": (b'"later"', b'"never"', "function 'shared'", "named 'never' further on"),
    "unknown type": (b"knapsack", b"magic", "line 9, function 'count'", "(got 'magic')"),
    "weights": (b"[1 1]", b"[1 1 1]", "line 9, function 'count'", "Expected 2 weights (got 3)"),
}

# whole files: name, bytes, the place, part of the message
WHOLE: dict[str, tuple[str, bytes, str, str]] = {
    "uai empty": ("a.uai", b"", "line 1", "got the end of the file"),
    "uai blank": ("a.uai", b"\n \n", "line 3", "got the end of the file"),
    "uai binary junk": ("a.uai", bytes(range(256)) * 4, "line 1", "Expected MARKOV or BAYES"),
    "uai zeros": ("a.uai", bytes(200000), "line 1", "more than 65536 characters"),
    "uai other compression": ("a.uai", gzip.compress(UAI), "line 1", "Expected MARKOV or BAYES"),
    "uai no variables": ("a.uai", b"MARKOV", "line 1", "the number of variables"),
    "uai huge table": (
        "a.uai",
        b"MARKOV 4 900 900 900 900 1 4 0 1 2 3 5 1 2",
        "scope 0",
        "declares 656100000000 entries but the file has only 42 bytes",
    ),
    "uai huge tables together": (
        "a.uai",
        b"MARKOV 2 6 6 2 2 0 1 2 1 0 36 1 1 1 1 1 1 1 1 1 1 1 1",
        "line 1",
        "declares 74 numbers but the file has only",
    ),
    "uai truncated cardinalities": ("a.uai", b"MARKOV\n3\n2 3", "line 2", "declares 3 cardinalities but"),
    "uai truncated scopes": ("a.uai", UAI[:35], "scope 3", "got the end of the file"),
    "uai truncated tables": ("a.uai", UAI[:70], "line 8", "numbers but the file has only"),
    "uai last number missing": ("a.uai", UAI[: UAI.rindex(b" 0.25")] + b"   \n\n", "table 3", "the end of the file"),
    "uai trailing junk": ("a.uai", UAI + b"\nthanks", "line 19", "Expected the end of the file (got 'thanks')"),
    "uai one table too many": ("a.uai", UAI + b"1 0.5", "line 18", "Expected the end of the file (got '1')"),
    "gzip that is not": ("a.uai.gz", UAI, "", "is not a whole gzip file"),
    "gzip truncated": ("a.uai.gz", gzip.compress(UAI)[:-10], "", "is not a whole gzip file"),
    "gzip damaged": ("a.uai.gz", gzip.compress(UAI)[:-6] + b"abcdef", "", "is not a whole gzip file"),
    "gzip trailing junk": ("a.uai.gz", gzip.compress(UAI) + b"junk", "", "is not a whole gzip file"),
    "xz that is not": ("a.uai.xz", UAI, "", "is not a whole xz file"),
    "xz truncated": ("a.uai.xz", lzma.compress(UAI)[:-10], "", "is not a whole xz file"),
    "xz of junk": ("a.wcsp.xz", lzma.compress(bytes(range(256))), "line 2", "the number of variables"),
    "gzip empty": ("a.bif.gz", b"", "line 1", "Expected a network with variables"),
    "fg empty": ("a.fg", b"# nothing\n", "line 2", "the number of factors"),
    "fg truncated": ("a.fg", FG[:60], "factor 1", "the end of the file"),
    "fg truncated entries": ("a.fg", FG[:40], "factor 0", "declares 12 numbers but"),
    "fg trailing junk": ("a.fg", FG + b"7", "line 21", "Expected the end of the file"),
    "bif empty": ("a.bif", b"", "line 1", "Expected a network with variables"),
    "bif junk": ("a.bif", b"\x00\x01\x02 hello", "line 1", "Expected network, variable or probability"),
    "bif truncated": ("a.bif", BIF[:-30], "probability of 'Wet'", "(got the end of the file)"),
    "bif table twice": (
        "a.bif",
        BIF + b"probability ( Rain ) { table 0.2, 0.8; }",
        "line 10, probability of 'Rain'",
        "two",
    ),
    "bif huge": (
        "a.bif",
        b"".join(b"variable v%d { type discrete [ 9 ] { a,b,c,d,e,f,g,h,i }; } " % i for i in range(20))
        + b"probability ( "
        + b",".join(b"v%d" % i for i in range(20))
        + b" ) { table 1; }",
        "line 1, probability of 'v0'",
        "above the limit of 16777216",
    ),
    "wcsp empty": ("a.wcsp", b"", "line 1", "the problem's name"),
    "wcsp junk": ("a.wcsp", bytes(range(128, 256)), "line 1", "the number of variables"),
    "wcsp huge table": (
        "a.wcsp",
        b"t 2 9000 1 9\n9000 9000\n2 0 1 0 0\n",
        "line 3, cost function 0",
        "above the limit",
    ),
    "wcsp truncated": ("a.wcsp", WCSP[:60], "cost function", "the end of the file"),
    "wcsp junk after a large rule": (
        "a.wcsp",
        b"t 2 44155 2 99\n44155 259\n2 0 1 -1 sdisj 1 1 5 5 1 1\n1 0 junk",
        "line 4, cost function 1",
        "(got 'junk')",
    ),
    "wcsp junk after a large table": (
        "a.wcsp",
        b"t 2 4000 2 99\n4000 4000\n2 0 1 0 0\n1 0 junk",
        "line 4, cost function 1",
        "(got 'junk')",
    ),
    "fg junk after a large table": (
        "a.fg",
        b"2\n\n2\n0 1\n4000 4000\n1\n0 1\n\njunk",
        "line 9, factor 1",
        "(got 'junk')",
    ),
    "wcsp trailing junk": ("a.wcsp", WCSP + b"end", "line 13", "Expected the end of the file (got 'end')"),
    "wcsp shared bomb": (
        "a.wcsp",
        b"t 2 3000 300 9\n3000 3000\n-2 0 1 0 0\n" + b"2 0 1 0 -1\n" * 299,
        "cost function 1",
        "above the limit",
    ),
    "wcsp rule of rules": (
        "a.wcsp",
        b"t 2 2 1 9\n2 2\n2 0 1 -1 sgcc var 1 " + BIG + b" 0 1 1\n",
        "line 3, cost function 0",
        "bounds but the file has only",
    ),
    "cfn empty": ("a.cfn", b"", "line 1", "(got the end of the file)"),
    "cfn junk": ("a.cfn", b"\x89PNG\r\n\x1a\n", "line 1", "UTF-8"),
    "cfn truncated": ("a.cfn", CFN[:-5], "line 10", "(got the end of the file)"),
    "cfn trailing junk": ("a.cfn", CFN + b"{}", "line 12", "Expected the end of the file"),
    "cfn deep": ("a.cfn", b"[" * 100000, "line 1", "Expected"),
    "fgm empty": ("a.fgm", b"", "header", "is not a whole fgnn model file"),
    "fgm junk": ("a.fgm", bytes(range(256)) * 10, "header", "is not a whole fgnn model file"),
    "fgm truncated": ("a.fgm", native()[:-9], "header", "is not a whole fgnn model file"),
    "fgm trailing junk": ("a.fgm", native() + b"12345678", "header", "is not a whole fgnn model file"),
    "fgm huge header": ("a.fgm", b"\xff" * 7 + b"\x00" + native()[8:], "header", "is not a whole fgnn model file"),
    "fgm of another program": (
        "a.fgm",
        header(lambda t: swap(t, b"fgnn-model", b"their-maps")),
        "header",
        "written by fgnn",
    ),
    "fgm of a later version": ("a.fgm", header(lambda t: swap(t, b'model":"1"', b'model":"2"')), "header", "version 1"),
    "fgm array missing": ("a.fgm", header(lambda t: swap(t, b'"unary"', b'"binary"')), "array", "array unary"),
    "fgm array besides": (
        "a.fgm",
        header(lambda t: t.replace(b"budgets.0", b"fidgets.0")),
        "arrays",
        "'fidgets.0.at_least'",
    ),
    "fgm other type": ("a.fgm", header(lambda t: t.replace(b'"F64"', b'"I64"')), "array", "as float64 (got int64)"),
    "fgm compressed junk": ("a.fgm.gz", gzip.compress(b"junk" * 99), "header", "is not a whole fgnn model file"),
    "unknown suffix": ("a.xyz", UAI, "name", "Expected a suffix among"),
    "compression alone": ("a.gz", gzip.compress(UAI), "name", "Expected a suffix among"),
}


# evidence for the valid UAI file: bytes, the place, part of the message
EVIDENCE: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "line 1", "got an empty file"),
    "junk": (b"\x00\xff\x80", "line 1, number 0", "integer (got '\\x00\\xff\\x80')"),
    "words": (b"1 a 0", "line 1, number 1", "(got 'a')"),
    "negative state": (b"1 0 -1", "line 1, number 2", "at least 0 (got -1)"),
    "unknown variable": (b"1 3 0", "line 1, observation 0", "variable below 3 (got 3)"),
    "empty lines at the end": (b"2\n0 1\n1 3\n\n", "line 3, observation 1", "state below 3 for variable 1 (got 3)"),
    "first of two observations": (b"2\n0 3\n1 0\n", "line 2, observation 0", "state below 2 for variable 0 (got 3)"),
    "state out of range": (b"2\n0 1\n1 3", "line 3, observation 1", "state below 3 for variable 1 (got 3)"),
    "odd count": (b"2 0 1 1", "line 1, number 0", "got 4 numbers that start with 2"),
    "too many": (b"1 0 1 1 2", "line 1, number 4", "Expected 2 numbers for 1 observations (got 4)"),
    "too few": (b"3 0 1 1 2", "line 1, number 4", "Expected 6 numbers for 3 observations (got 4)"),
    "two samples": (b"2 1 0 1 1 0 0", "line 1, number 6", "Expected 4 numbers for 2 observations"),
    "two samples, even": (b"2 2 0 1 1 2 2 0 1 1 2 0", "line 1", "Expected"),
    "contradiction": (b"2 0 1 0 0", "line 1, observation 1", "one state for variable 0 (got 1 and 0)"),
    "huge": (b"1000000000000 0 1", "line 1", "Expected 2000000000000 numbers"),
    "endless": (b"5 " * 100_000, "line 1", "Expected"),
}


def _edited(base: bytes, suffix: str, edits: Edits) -> dict[str, tuple[str, bytes, str, str]]:
    return {
        f"{suffix} {name}": (f"a.{suffix}", swap(base, old, new), place, what)
        for name, (old, new, place, what) in edits.items()
    }


# all of them: file name, bytes, the place, part of the message
BROKEN = (
    _edited(UAI, "uai", UAI_EDITS)
    | _edited(FG, "fg", FG_EDITS)
    | _edited(BIF, "bif", BIF_EDITS)
    | _edited(WCSP, "wcsp", WCSP_EDITS)
    | _edited(CFN, "cfn", CFN_EDITS)
    | WHOLE
)
