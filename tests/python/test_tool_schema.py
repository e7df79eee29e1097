"""docs/compare.schema.json describes what the tool writes: rows, totals, answers, comparisons; and CSV's columns."""

import json
from pathlib import Path

import numpy
import pytest

from tool_runs import EXACT, LOSSY, SYNTH, compare, needs_tool, run

jsonschema = pytest.importorskip("jsonschema", reason="no package jsonschema")
pytestmark = needs_tool
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "compare.schema.json").read_text("utf-8"))
ROW = SCHEMA["$defs"]["row"]


def validate(document):
    jsonschema.validators.validator_for(SCHEMA).check_schema(SCHEMA)
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "model.npz"
    draw = numpy.random.default_rng(1).standard_normal
    numpy.savez(file, **{"conv1.weight": draw((8, 4, 3, 3), "f4"), "fc.weight": draw((20, 30), "f4"), "fc.bias": numpy.zeros(20, "f4")})
    return file


def test_a_document_is_as_described(model):
    document = compare(model, "--tensor", "*", "--best", "total_error < 0.5", plans=(EXACT, LOSSY))
    validate(document)
    assert document["totals"] and document["best"]
    validate(compare(SYNTH, "--best", "total_error < 0"))


def test_a_comparison_is_as_described(tmp_path, model):
    old = tmp_path / "old.json"
    old.write_text(json.dumps(compare(model, "--tensor", "*", plans=(EXACT, LOSSY))))
    document = json.loads(run("compare", model, "--tensor", "*", "--plan", EXACT, "--repeat", 1, "--against", old, "--format", "json").stdout)
    validate(document)
    assert document["against"]["rows"] and document["against"]["only_old"]


@pytest.mark.parametrize("spoil", [lambda d: d.pop("rows"), lambda d: d["rows"][0].pop("bytes"), lambda d: d["rows"][0].update(bytes="many"),
                                   lambda d: d["totals"][0].update(tensors=0), lambda d: d.update(schema="other")])
def test_another_document_is_not(model, spoil):
    document = compare(model, "--tensor", "*")
    spoil(document)
    with pytest.raises(jsonschema.ValidationError):
        validate(document)


def test_csv_has_the_columns_of_the_schema_in_their_order():
    columns = [name for name in ROW["properties"] if name not in ("samples", "timed", "data", "machine", "commit", "from")]
    assert ROW["required"] == columns
    assert list(compare(SYNTH, form="csv")[0]) == [*columns, "machine", "commit"]


def test_each_column_says_what_it_means_and_each_number_its_unit():
    for name, column in ROW["properties"].items():
        assert column["description"], name
        assert ("x-unit" in column) == (column["type"][0] in ("integer", "number") or column["type"] in ("integer", "number")) or name in ("step", "samples"), name


def test_help_and_schema_explain_each_column_in_the_same_words():
    described = " ".join(run("help", "columns").stdout.decode().split())
    for name in ROW["required"]:
        assert f"{name} {ROW['properties'][name]['description']}" in described, name
