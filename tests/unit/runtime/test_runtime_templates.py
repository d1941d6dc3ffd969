"""Compiled templates are shared by processes; their text decides, and nothing depends on it."""

import jinja2
import pytest

from polygen import knobs
from polygen.emit import environment
from polygen.runtime import cache, templates

NAME = "header.h.j2"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a process that has rendered nothing, as far as templates go; gives what it compiles.

    The folder of kept templates is the same for all of them.
    """

    def started():
        for kept in (environment.compiled, environment.environment, templates._read):
            kept.cache_clear()
        asked = []
        compile_template = jinja2.Environment.compile

        def compile_(self, source, name=None, *rest, **more):
            asked.append(name)
            return compile_template(self, source, name, *rest, **more)

        monkeypatch.setattr(jinja2.Environment, "compile", compile_)
        return asked

    with knobs.scope(cache_dir=tmp_path, cache=True):
        yield started
    for kept in (environment.compiled, environment.environment, templates._read):
        kept.cache_clear()


def render():
    with templates.templates_kept():
        template = environment.environment().get_template(NAME)
    return {name: function.__code__.co_code for name, function in template.blocks.items()}, [
        one for one in template.root_render_func.__code__.co_consts if isinstance(one, str)
    ]


def test_another_process_compiles_nothing(start):
    asked = start()
    first = render()
    assert asked == [NAME]
    asked = start()
    assert render() == first and not asked


def test_a_damaged_file_is_compiled_again(start):
    start()
    first = render()
    (entry,) = cache.directory().glob("templates/??/*.bin")
    entry.write_bytes(entry.read_bytes()[:-7] + b"damaged")
    asked = start()
    assert render() == first and asked == [NAME]
    asked = start()  # and was written again
    assert render() == first and not asked


def test_a_template_of_another_text_is_another_one(start, monkeypatch):
    start()
    first = render()
    asked = start()
    get_source = jinja2.PackageLoader.get_source

    def changed(self, env, template):
        text, *rest = get_source(self, env, template)
        return (text + "// one line more\n", *rest)

    monkeypatch.setattr(jinja2.PackageLoader, "get_source", changed)
    assert render() != first and asked == [NAME]


def test_nothing_is_kept_where_the_cache_is_off_or_cannot_be_written(start, tmp_path):
    start()
    with knobs.scope(cache=False):
        first = render()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("no folder")
    with knobs.scope(cache_dir=tmp_path / "file"):
        start()
        assert render() == first


def test_clearing_the_cache_clears_templates(start):
    start()
    render()
    assert cache.info().bytes > 0
    assert cache.clear() == 0 and cache.info().bytes == 0
