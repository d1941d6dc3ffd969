"""The page of a kernel: it stands alone, what it refers to is there, and it says what is true."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import jinja2
import pytest

import polygen as pg
from polygen import knobs
from polygen.cli import main
from polygen.errors import CacheError
from polygen.page import content as contents
from polygen.page import pictures, render
from polygen.runtime import files

SIZES = {"M": 4096, "N": 4096, "K": 1024}
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(autouse=True, scope="module")
def _cache_of_its_own(tmp_path_factory):
    with knobs.scope(cache_dir=tmp_path_factory.mktemp("cache"), arch=None, schedule=None):
        yield


def compiled(arch, function, *signature, **options):
    return pg.fuse(function, name="up").compile(*signature, arch=arch, **options)


def up(x, w, b):
    return pg.where(x @ w.T < 3, pg.gelu(x @ w.T + b), 0.0)


KERNELS = {
    "warps": ("sm_80", up, ("bf16[M,K]", "bf16[N,K]", "bf16[N]"), {"sizes": SIZES}),
    "roles": ("sm_90a", up, ("bf16[M,K]", "bf16[N,K]", "bf16[N]"), {"sizes": SIZES}),
    "folds": (
        "sm_90a", lambda x, w: (x @ w.T, pg.max(x @ w.T, axis=1)),
        ("bf16[M,K]", "bf16[N,K]"), {"sizes": SIZES},
    ),
    "lanes": (
        "sm_80", lambda x, w: x @ w.T, ("bf16[1,K]", "bf16[N,K]"),
        {"sizes": {"N": 4096, "K": 4096}},
    ),
    "no sizes": ("sm_90a", lambda x, w: x @ w, ("f16[M,K]", "f16[K,N]"), {}),
}  # fmt: skip


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request):
    arch, function, signature, options = KERNELS[request.param]
    return compiled(arch, function, *signature, **options)


@pytest.fixture(scope="module")
def roles():
    arch, function, signature, options = KERNELS["roles"]
    return compiled(arch, function, *signature, **options)


class Read(HTMLParser):
    """Ids, references, scripts and texts by element; unclosed or misplaced tags are errors."""

    VOID = frozenset({"meta", "input", "br"})

    def __init__(self, text):
        super().__init__()
        self.ids, self.elements, self.open = [], [], []
        self.texts = {"script": [], "style": [], "pre": [], "title": []}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.elements.append((tag, found))
        if "id" in found:
            self.ids.append(found["id"])
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in self.open:
            if tag in self.texts:
                self.texts[tag][-1] += data

    def values(self, name):
        return {found[name] for _, found in self.elements if found.get(name)}


# --- standing alone
@pytest.fixture(scope="module")
def several():
    """A program of two kernels, for sizes that make their times known."""
    operands = ("bf16[M,512]", "bf16[512,4096]", "bf16[4096,512]")
    return compiled("sm_90a", lambda x, u, d: pg.gelu(x @ u) @ d, *operands, sizes={"M": 2048})


def test_everything_referred_to_is_there(kernel):
    everything_is_there(kernel.page())


def test_everything_referred_to_is_there_of_several_kernels(several):
    assert len(several.kernels) == 2
    everything_is_there(several.page())


def everything_is_there(text):
    read = Read(text)
    assert len(read.ids) == len(set(read.ids))
    ids = set(read.ids)
    hrefs = read.values("href")
    assert hrefs and all(href.startswith("#") for href in hrefs)
    assert {href[1:] for href in hrefs} <= ids
    for part in text.split('class="kernel"')[1:]:  # the script looks inside of one kernel
        named = set(re.findall(r'data-sync="([^"]*)"', part))
        assert named <= set(re.findall(r'data-enforces="([^"]*)"', part))
        assert part.count('class="nothing"') == 1
    assert read.values("data-stage") <= ids
    script = read.texts["script"][0]
    looked_up = re.findall(r'(?:[sS]elector(?:All)?|all)\("([^"]+)"\)', script)
    own = [".kernel", ".nothing", "[data-sync]", "g[data-name]", "[data-enforces]", "[data-stage]"]
    assert sorted(looked_up) == sorted([*own, "li"])


def test_several_kernels_are_a_page_with_each_of_them(several, tmp_path, capsys):
    text, read = several.page(), Read(several.page())
    for at, kernel in enumerate(several.kernels, 1):
        own = kernel.page()
        stages = (own.split('<article id="')[1:], text.split(f'<article id="kernel{at}-')[1:])
        for one, other in zip(*stages, strict=True):
            assert one.split("</article>")[0] == other.split("</article>")[0]
        assert f'<a href="#kernel{at}-top">{kernel.program.name}</a>' in text
    (between,) = several.between
    assert f"{between.name}, between" in text and "bf16[M, 4096]" in text
    times = [float(t) for t in re.findall(r"<td>([\d.]+) us</td>", text)]
    assert len(times) == 2 and f"{sum(times):.1f} us together" in text
    boxes = text.split('id="order-picture"')[1].split("</svg>")[0]
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="20', boxes)]
    assert widths[0] / widths[1] == pytest.approx(times[0] / times[1], rel=0.05)
    assert read.texts["title"][0] == several.program.name
    file = tmp_path / "page.html"
    assert several.page(file) == text == file.read_text()


def test_times_that_are_not_predicted_are_not_drawn():
    drawn = pictures.draw_order([("a", 3.0), ("b", None)])
    assert [box.width for box in drawn.boxes] == [pictures.WIDTH / 2 - 1] * 2
    assert [box.title for box in drawn.boxes] == ["a: 3.0 us predicted", "b"]


def test_it_needs_no_network(kernel):
    text = kernel.page()
    read = Read(text)
    assert not any("src" in found for _, found in read.elements)
    assert not {tag for tag, _ in read.elements} & {"link", "img", "iframe", "object", "image"}
    style = read.texts["style"][0]
    assert "url(" not in style and "@import" not in style
    for word in ("fetch(", "XMLHttpRequest", "import(", "WebSocket", "//cdn"):
        assert word not in read.texts["script"][0]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_the_script_is_valid(roles, tmp_path):
    (script,) = Read(roles.page()).texts["script"]
    file = tmp_path / "page.js"
    file.write_text(script)
    done = subprocess.run(["node", "--check", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- what it says
def test_the_stages_are_those_of_show(roles):
    read = Read(roles.page())
    texts = dict(
        zip(("program", "proof", "tree", "plan", "cost", "cuda"), read.texts["pre"], strict=True)
    )
    for stage in ("program", "tree", "plan", "cost", "cuda"):
        assert texts[stage].strip() == roles.show(stage).strip(), stage
    assert texts["proof"].splitlines() == [str(proof) for proof in roles.passes.plan.proofs]
    assert "3" in roles.source and "<" in roles.source  # what has to be escaped


def test_a_barrier_shows_what_the_plan_says_it_enforces(roles):
    made = contents.content(roles.passes, SIZES)
    known = {barrier.name: barrier for barrier in made.barriers}
    syncs = roles.passes.tree.synchronised.syncs
    assert {sync.name for sync in syncs} == set(known)
    text = roles.page()
    for sync in syncs:
        assert tuple(d.text for d in known[sync.name].enforces) == sync.enforces
        part = text.split(f'id="enforces-{sync.name}"')[1].split("</div>")[0]
        for enforced in sync.enforces:
            assert html.escape(enforced) in part
    full = known["full_ring"]
    first = full.enforces[0]
    assert (first.source, first.target, first.buffer) == ("fill", "multiply", "ring_a")
    assert "wait_full_ring" in full.leaves and "fill" not in full.leaves


def test_every_barrier_is_marked_where_the_code_names_it(roles):
    text = roles.page()
    code = text.split('<article id="stage-cuda">')[1].split("</article>")[0]
    for name, leaf in (("full_ring", "wait_full_ring"), ("empty_ring", "arrive_empty_ring")):
        mark = f'<span class="mention" data-sync="{name}">{leaf}</span>'
        assert code.count(mark) == len(re.findall(rf"\b{leaf}\b", roles.source)) > 0


def test_a_dependence_that_is_none_is_shown_as_it_is():
    assert contents.dependence("a parity bit") == contents.Dependence("a parity bit")


def test_shared_memory_is_drawn_to_scale(kernel):
    plan = kernel.passes.plan
    drawn = pictures.memory_of(plan)
    limit = plan.resources.shared_limit
    for buffer in plan.buffers:
        mine = [box for box in drawn.boxes if box.name == buffer.name]
        assert len(mine) == buffer.slots * buffer.owners
        assert mine[0].x == pytest.approx(buffer.offset / limit * drawn.width, abs=0.02)
        last = mine[-1].x + mine[-1].width
        assert last <= buffer.end / limit * drawn.width + 2
    assert f"of {limit} B" in drawn.boxes[-1].title


def test_buffers_over_others_are_drawn_above_them():
    arch, function, signature, options = KERNELS["warps"]
    plan = compiled(arch, function, *signature, **options).passes.plan
    drawn = pictures.memory_of(plan)
    rows = {box.name: box.y for box in drawn.boxes}
    assert plan.buffer("scratch").overlay and rows["scratch"] < rows["ring_a"]


def test_the_roofline_is_the_cost_models(roles):
    made = contents.content(roles.passes, SIZES)
    said = re.search(r"predicted: ([\d.]+) us", roles.show("cost"))
    one = 2 * SIZES["M"] * SIZES["N"] * SIZES["K"]  # the two products are one
    seconds = float(said[1]) * 1e-6
    assert made.point.predicted * 1e12 == pytest.approx(one / seconds, rel=0.01)
    assert made.point.predicted < made.point.roof <= made.point.compute
    moved = 2 * (4096 * 1024 * 2 + 4096 * 4096)  # bytes: x, w and the result
    assert made.point.intensity == pytest.approx(one / moved, rel=0.01)


def test_a_roof_of_memory_is_below_the_ridge():
    low = pictures.Roofline(intensity=2.0, predicted=3.0, compute=1000.0, memory=4000.0)
    assert low.ridge == 250.0 and low.roof == 8.0
    drawn = pictures.draw_roofline(low)
    (x, y, said), ridge = drawn.points[0], drawn.lines[0]
    assert x < ridge[2] and y > ridge[3] and "38% of the roof" in said


def test_names_of_users_are_escaped():
    made = compiled("sm_80", lambda x, w: pg.where(x @ w < 1, 1.0, 2.0), "f16[M,K]", "f16[K,N]")
    text = made.page()
    assert "&lt; 1" in text and "w < 1" not in text


def test_an_undefined_name_in_the_template_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        render.environment().from_string("{{ page.nothing }}").render(page=object())


# --- writing it
def test_the_page_is_written_whole_or_not_at_all(roles, tmp_path, monkeypatch):
    path = tmp_path / "folder" / "up.html"
    assert roles.page(path) == path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["up.html"]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    path.write_text("the old page")
    with pytest.raises(CacheError, match="No space left"):
        roles.page(path)
    assert path.read_text() == "the old page"
    assert [p.name for p in path.parent.iterdir()] == ["up.html"]


WORDS = ["show", "x @ w.T", "x:bf16[M,K]", "w:bf16[N,K]", "--arch", "sm_80"]


def test_the_command_writes_the_page(tmp_path, capsys):
    file = tmp_path / "k.html"
    assert main([*WORDS, "--html", str(file)]) == 0
    assert str(file) in capsys.readouterr().out
    assert file.read_text().startswith("<!doctype html>")
    assert main([*WORDS, "--html", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(file)


def test_a_stage_and_the_page_are_too_much(tmp_path, capsys):
    assert main([*WORDS, "--html", str(tmp_path / "k.html"), "--stage", "plan"]) == 2
    assert "--html and --stage" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_same_kernel_same_page(roles):
    assert roles.page() == roles.page()


# --- in a browser
CLICKS = """
<script>
const find = (name) => document.querySelector(`#stages [data-sync="${name}"]`);
const shown = () => Array.from(document.querySelectorAll(".enforces"))
  .filter((one) => getComputedStyle(one).display !== "none").map((one) => one.id);
const said = [shown()];
const barrier = find("full_ring");
barrier.dispatchEvent(new Event("mouseenter")); said.push(shown());
said.push(Array.from(document.querySelectorAll("g.side")).map((g) => g.dataset.name));
said.push(document.querySelectorAll("#timeline-picture g.on").length);
barrier.dispatchEvent(new Event("mouseleave")); said.push(shown());
barrier.click(); said.push(shown());
find("empty_ring").dispatchEvent(new Event("mouseenter")); said.push(shown());
find("empty_ring").dispatchEvent(new Event("mouseleave")); said.push(shown());
barrier.click(); said.push(shown());
const listed = document.querySelector('#barriers [data-sync="turn"]');
listed.focus(); said.push(shown()); listed.blur();
const box = document.querySelector("[data-stage=stage-tree]"); box.click();
said.push(getComputedStyle(document.getElementById("stage-tree")).display);
document.title = "said " + JSON.stringify(said);
</script>
"""


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no browser without a window")
def test_pointing_and_clicking_in_a_browser(roles, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(roles.page().replace("</body>", CLICKS + "</body>"))
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", file.as_uri()]
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    said = re.search(r"<title>said (.*?)</title>", done.stdout)
    assert said, done.stderr
    nothing, pointed, sides, waits, left, clicked, other, back, again, focused, tree = json.loads(
        html.unescape(said[1])
    )
    assert nothing == left == again == []
    assert pointed == clicked == back == ["enforces-full_ring"]
    assert other == ["enforces-empty_ring"]
    assert {"fill", "multiply", "ring_a", "ring_b"} <= set(sides) and waits > 0
    assert focused == ["enforces-turn"] and tree == "none"
