"""The viewer's layers, checked by hand, and its script, run by Node with a page of stubs."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fgnn.points.cloud import Cloud
from fgnn.report.layers import given_classes, scan_layers, value_layer
from fgnn.report.viewer import write_viewer

NODE = shutil.which("node")
# Elements that answer to everything, a WebGL context that draws nothing, and what a test asks for.
STUBS = """
const elements = {};
const values = { size: "2", width: "30" };
const context = new Proxy({}, {
  get: (_, name) => (name === "getShaderParameter" ? () => true : () => ({})), set: () => true,
});
const element = (id) => elements[id] = elements[id] || {
  id, style: {}, dataset: {}, hidden: true, value: values[id] || "", children: [], firstElementChild: { style: {} },
  clientWidth: WIDTH, clientHeight: HEIGHT, offsetWidth: id === "panel" ? 200 : 0, getContext: () => context,
  add(option) { this.value = this.value || option.value; },
  append(...more) { this.children.push(...more); },
  replaceChildren(...more) { this.children = more; },
  setAttribute() {}, addEventListener() {},
};
const create = (tag) => element(`${tag}${Object.keys(elements).length}`);
globalThis.window = { devicePixelRatio: 1 };
globalThis.Option = class { constructor(text, value) { this.value = value; } };
globalThis.requestAnimationFrame = (run) => run();
globalThis.document = { getElementById: element, createElement: create };
element("cloud").textContent = DATA;
"""


def data_of(path: Path) -> dict[str, Any]:
    match = re.search(r'<script id="cloud" type="application/json">(.*?)</script>', path.read_text(), re.DOTALL)
    assert match is not None
    data: dict[str, Any] = json.loads(match.group(1))
    return data


def layer(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in data["layers"] if one["name"] == name)


def decode(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(base64.b64decode(text), np.uint8)


def run(path: Path, question: str, width: int = 1200, height: int = 700) -> Any:
    """The value of an expression after the page's script has run."""
    if NODE is None:
        pytest.skip("Node is not installed")
    text = path.read_text()
    script = text[text.rindex("<script>") + 8 : text.rindex("</script>")]
    stubs = (
        STUBS.replace("WIDTH", str(width))
        .replace("HEIGHT", str(height))
        .replace("DATA", json.dumps(json.dumps(data_of(path))))
    )
    program = f"{stubs}\n{script}\nconsole.log(JSON.stringify({question}));"
    done = subprocess.run([NODE, "-"], input=program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def scan(extent: tuple[float, float, float] = (400.0, 20.0, 10.0), count: int = 2000) -> Cloud:
    rng = np.random.default_rng(0)
    xyz = rng.uniform(0, 1, (count, 3)) * extent + (600_000, 5_000_000, 100)
    fields = {
        "intensity": rng.integers(0, 1000, count).astype(np.uint16),
        "return_number": np.tile([1, 1, 2, 3], count // 4).astype(np.uint8),
        "number_of_returns": np.tile([1, 3, 3, 3], count // 4).astype(np.uint8),
        "classification": np.tile([2, 6, 5, 1], count // 4).astype(np.uint8),
    }
    return Cloud(xyz, fields)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    cloud = scan()
    label = np.tile([0, 1, 0, 1], len(cloud) // 4)
    return write_viewer(cloud, label, tmp_path / "v.html", ["ground", "other"], np.linspace(0, 1, len(cloud)))


def test_a_scan_has_a_layer_for_what_it_holds(page: Path) -> None:
    data = data_of(page)
    names = ["class", "height", "intensity", "returns", "given", "disagreement", "confidence"]
    assert [one["name"] for one in data["layers"]] == names
    counts = {name: {e["name"]: e["count"] for e in layer(data, name)["entries"]} for name in ("returns", "given")}
    assert counts["returns"] == {"single": 500, "first of several": 500, "intermediate": 500, "last": 500, "unknown": 0}
    wanted = {"unclassified": 500, "ground": 500, "high vegetation": 500, "building": 500, "others": 0}
    assert counts["given"] == wanted
    # ground is ground, a building is other, high vegetation was called ground, and unclassified says nothing
    assert decode(layer(data, "disagreement")["data"])[:4].tolist() == [0, 0, 1, 2]
    assert layer(data, "height")["low"] == pytest.approx(100.1, abs=0.1)
    assert layer(data, "height")["high"] == pytest.approx(109.9, abs=0.1)


def test_a_plain_cloud_has_only_class_and_height(tmp_path: Path) -> None:
    write_viewer(Cloud(np.random.default_rng(0).random((9, 3))), np.zeros(9, np.uint8), tmp_path / "v.html", ["a"])
    assert [one["name"] for one in data_of(tmp_path / "v.html")["layers"]] == ["class", "height"]


@pytest.mark.parametrize(
    ("classes", "wanted"),
    [
        (["ground", "other"], [-1, -1, 0, 1, 1, 1, 1, 1, 1, 1]),
        (["ground", "vegetation", "building"], [-1, -1, 0, 1, 1, 1, 2, -1, -1, -1]),
        (["noise", "low vegetation", "high vegetation", "water", "bridge"], [-1, -1, -1, 1, 2, 2, -1, 0, 3, 4]),
    ],
)
def test_codes_meet_the_classes_of_a_network_by_name(classes: list[str], wanted: list[int]) -> None:
    assert given_classes(np.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 17]), classes).tolist() == wanted


def test_the_given_classification_is_the_one_before_ours() -> None:
    cloud = Cloud(np.zeros((2, 3)), {"classification": np.array([6, 6]), "classification_original": np.array([2, 2])})
    given = next(one for one in scan_layers(cloud, np.zeros(2, np.int64), ["ground"]) if one.name == "given")
    assert [e.name for e in given.entries if e.count] == ["ground"]


def test_a_scale_leaves_out_a_few_outliers_and_holds_odd_values() -> None:
    values = np.r_[np.linspace(0, 1, 1000), 1e9, np.nan, -np.inf]
    made = value_layer("v", "v", values)
    assert made.high == pytest.approx(0.99, abs=0.02)
    assert made.data[-3:].tolist() == [255, 0, 0]
    assert value_layer("v", "v", np.full(5, 3.0)).data.tolist() == [0] * 5
    assert value_layer("v", "v", np.zeros(0)).high == 1.0


@pytest.mark.parametrize("extent", [(400.0, 20.0, 10.0), (20.0, 400.0, 10.0), (5.0, 5.0, 60.0), (1.0, 1.0, 1.0)])
@pytest.mark.parametrize("size", [(1200, 700), (500, 900)])
def test_the_first_view_holds_the_scan_and_fills_the_screen(
    tmp_path: Path, extent: tuple[float, float, float], size: tuple[int, int]
) -> None:
    cloud = scan(extent)
    cloud.xyz[:3] += (0, 0, 5000)  # three stray points must not shrink the others
    path = write_viewer(cloud, np.zeros(len(cloud), np.uint8), tmp_path / "v.html", ["a"])
    camera, sides, box = run(path, "[Array.from(camera()), side, cloud.box]", *size)
    matrix = np.array(camera).reshape(4, 4).T
    corners = np.array([[box[i >> k & 1][k] for k in range(3)] for i in range(8)])
    seen = np.c_[(corners - 0.5) * sides, np.ones(8)] @ matrix.T
    seen = seen[:, :2] / seen[:, 3:]
    assert np.abs(seen).max() < 1.0
    filled = np.ptp(seen, axis=0) / (2 * (1 - 200 / size[0]), 2)
    assert filled.max() > 0.6
    if extent[0] != extent[1]:
        assert np.ptp(seen[:, 0]) * size[0] > np.ptp(seen[:, 1]) * size[1]  # its longer side lies across


def test_a_click_names_the_point_under_it(page: Path) -> None:
    found = run(
        page,
        """[17, 400, 1999].map((p) => {
          const m = camera(), v = [0, 1, 2].map((k) => (grid[3 * p + k] / 65535 - 0.5) * side[k]).concat(1);
          const at = (row) => [0, 1, 2, 3].reduce((s, k) => s + m[4 * k + row] * v[k], 0);
          clicked((at(0) / at(3) + 1) * 600, (1 - at(1) / at(3)) * 350);
          const got = pick((at(0) / at(3) + 1) * 600, (1 - at(1) / at(3)) * 350);
          const q = [0, 1, 2].map((k) => (grid[3 * got + k] / 65535 - 0.5) * side[k]).concat(1);
          const depth = (u) => [0, 1, 2, 3].reduce((s, k) => s + m[4 * k + 3] * u[k], 0);
          return [got, depth(q) <= depth(v), elements.picked.children.map((e) => e.textContent)];
        })""",
    )
    cloud = scan()
    for point, nearer, text in found:
        assert nearer  # of several points under the cursor, the nearest
        shown = dict(zip(text[::2], text[1::2], strict=True))
        np.testing.assert_allclose([float(shown[a]) for a in "xyz"], cloud.xyz[point], atol=0.011)
        assert shown["given classification"] == ["ground", "building", "high vegetation", "unclassified"][point % 4]
        assert shown["returns"] == ["single", "first of several", "intermediate", "last"][point % 4]


def test_a_profile_holds_the_points_along_its_line(page: Path) -> None:
    ends, width, count = run(
        page, "(profile(), [ends, scale * 0.0005 * Math.exp(30 / 15), Number(elements.side.dataset.points)])"
    )
    xyz = scan().xyz
    a, b = np.array(ends[0]), np.array(ends[1])
    along = (b - a) / np.linalg.norm(b - a)
    assert abs(along[0]) > 0.999  # the longer side of the scan
    offset = xyz[:, :2] - a
    inside = (offset @ along >= 0) & (offset @ along <= np.linalg.norm(b - a))
    inside &= np.abs(offset @ [along[1], -along[0]]) <= width / 2
    assert count == pytest.approx(inside.sum(), abs=3)  # positions are rounded to 16 bits
    assert count > 50
    across = "(profile(), ends = [[600000, 5000000], [600000, 5000020]], paintProfile(), elements.side.dataset.points)"
    assert run(page, across) != count


def test_hiding_a_class_hides_it_in_every_layer(page: Path) -> None:
    hidden, again = run(
        page,
        """[(() => { hidden.class.add(1); elements.mode.value = "height"; const c = colours(layer());
          return [c[3], c[7], c[11], c[15]]; })(), (() => { hidden.class.clear(); return colours(layer())[7]; })()]""",
    )
    assert hidden == [255, 0, 255, 0]
    assert again == 255


def test_an_empty_cloud_has_a_page(tmp_path: Path) -> None:
    path = write_viewer(Cloud(np.zeros((0, 3))), np.zeros(0, np.uint8), tmp_path / "v.html", ["a"])
    assert run(path, "(profile(), clicked(5, 5), elements.picked.hidden)") is True
