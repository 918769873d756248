"""The page is bundled into one text, and exported as two files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fgnn.cli.play import play
from fgnn.errors import InputError
from fgnn.play.examples import EXAMPLES
from fgnn.play.model_json import model_from_json
from fgnn.play.page import COMPILED, make_page
from fgnn.play.site import export_site

PAGES = Path(__file__).resolve().parents[2] / "src/fgnn/play/pages"
SCRIPTS = {path.stem: path.read_text(encoding="utf-8") for path in PAGES.glob("*.js")}


def test_every_script_is_in_the_page_after_those_it_imports() -> None:
    page = make_page(server=False)
    order = re.findall(r"^modules\.(\w+) = ", page, re.MULTILINE)
    assert sorted(order) == sorted(SCRIPTS)
    for name, text in SCRIPTS.items():
        for other in re.findall(r'from "\./(\w+)\.js"', text):
            assert order.index(other) < order.index(name)
    assert not re.search(r"^(import|export) ", page, re.MULTILINE)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_what_others_export_and_uses_it(name: str) -> None:
    imports = re.findall(r'^import \{ ([^}]+) \} from "\./(\w+)\.js";$', SCRIPTS[name], re.MULTILINE)
    assert len(imports) == len(re.findall(r"^import ", SCRIPTS[name], re.MULTILINE))
    for names, other in imports:
        for imported in names.split(", "):
            word = re.escape(imported)
            assert re.search(
                rf"^export (async )?(function\*?|const|class) {word}(?![\w$])", SCRIPTS[other], re.MULTILINE
            )
            assert len(re.findall(rf"(?<![\w$]){word}(?![\w$])", SCRIPTS[name])) > 1, f"{imported} is not used"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_inserts_text_as_text(name: str) -> None:
    assert len(SCRIPTS[name].splitlines()) <= 300
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in SCRIPTS[name], way


def test_the_examples_in_the_page_are_models_and_some_have_their_network() -> None:
    page = make_page(server=False)
    parts = {
        name: json.loads(re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', page)[0])
        for name in ("examples", "networks")
    }
    assert list(parts["examples"]) == list(EXAMPLES)
    for name, example in EXAMPLES.items():
        assert model_from_json(parts["examples"][name]["model"]) == example.make()
    assert set(parts["networks"]) == set(COMPILED)
    for name, network in parts["networks"].items():
        assert network["model"] == parts["examples"][name]["model"]


def test_only_the_page_of_a_server_may_call_one() -> None:
    assert 'data-server="yes"' in make_page(server=True)
    assert 'data-server="yes"' not in make_page(server=False)


def test_the_site_is_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(export=tmp_path / "a" / "site")
    assert capsys.readouterr().out.split() == [str(tmp_path / "a" / "site" / n) for n in ("index.html", "weights.js")]
    files = sorted(path.name for path in (tmp_path / "a" / "site").iterdir())
    assert files == ["index.html", "weights.js"]
    text = (tmp_path / "a" / "site" / "index.html").read_text(encoding="utf-8")
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="taken"):
        export_site(tmp_path / "taken")
