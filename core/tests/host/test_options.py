from __future__ import annotations

from typing import Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from paceline.api import PacelineError
from paceline.host.options import CheckedModel, validate_options


class BadOptionsError(PacelineError):
    code = "PACELINE-E999"


class Inner(BaseModel):
    depth: int = Field(default=1, ge=1)


class Options(BaseModel):
    longest: int = Field(default=3, ge=1, le=16, validation_alias=AliasChoices("longest", "ngram_longest"))
    ratio: float = Field(default=0.5, gt=0)
    size: int | Literal["auto"] = "auto"
    inner: Inner = Field(default_factory=Inner)
    path: str

    @model_validator(mode="after")
    def _path_fits(self) -> Options:
        if self.path == "/":
            raise ValueError("path and ratio do not fit; change path")
        return self


def fault(values, model=Options):
    with pytest.raises(BadOptionsError) as error:
        validate_options(model, values, owner='plugin "x" 1.0', error_class=BadOptionsError)
    return str(error.value).removeprefix('PACELINE-E999: plugin "x" 1.0: ')


def test_valid_values_are_converted():
    options = validate_options(Options, {"ngram_longest": 4, "path": "a"}, owner="x", error_class=BadOptionsError)

    assert (options.longest, options.size) == (4, "auto")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"path": "a", "longest": 99}, 'option "longest" = 99: Input should be less than or equal to 16'),
        ({"path": "a", "ngram_longest": 0}, 'option "ngram_longest" = 0: Input should be greater than or equal to 1'),
        ({"path": "a", "inner": {"depth": 0}}, 'option "inner.depth" = 0: Input should be greater than or equal to 1'),
        ({}, 'option "path" is required'),
        ({"path": "/"}, "path and ratio do not fit; change path"),
        ({"path": "a", "ratoi": 1}, 'unknown option "ratoi" = 1; did you mean "ratio"?'),
        ({"path": "a", "ngram_longst": 1}, 'unknown option "ngram_longst" = 1; did you mean "ngram_longest"?'),
        (
            {"path": "a", "zzz": 1},
            'unknown option "zzz" = 1; known: inner, longest, ngram_longest, path, ratio, size',
        ),
    ],
)
def test_message_names_option_value_bound_and_nearest(values, message):
    assert fault(values) == message


def test_every_fault_is_told():
    assert fault({"path": "a", "longest": 0, "ratio": -1}).count("option") == 2


def test_members_of_a_union_are_not_part_of_the_option():
    text = fault({"path": "a", "size": "big"})

    assert 'option "size" = ' in text and "size.int" not in text and "'auto'" in text


def test_long_values_are_cut():
    assert len(fault({"path": "a", "longest": "9" * 5000})) < 300


def test_model_that_asks_for_extra_values_gets_them():
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

    built = validate_options(Open, {"anything": 1}, owner="x", error_class=BadOptionsError)

    assert built.model_extra == {"anything": 1}


def test_field_name_behind_an_alias_is_known_only_by_name_population():
    class Aliased(BaseModel):
        top: int = Field(default=0, alias="ngram_top")

    class Both(Aliased):
        model_config = ConfigDict(populate_by_name=True)

    assert fault({"top": 1}, Aliased) == 'unknown option "top" = 1; known: ngram_top'
    assert validate_options(Both, {"top": 1}, owner="x", error_class=BadOptionsError).top == 1


class Checked(CheckedModel):
    owner = "sampling parameters"
    error_class = BadOptionsError

    top_p: float = Field(default=1.0, gt=0, le=1)


def test_checked_model_raises_its_own_error_however_it_is_made():
    message = 'PACELINE-E999: sampling parameters: option "top_p" = 2: Input should be less than or equal to 1'
    for make in (lambda: Checked(top_p=2), lambda: Checked.model_validate({"top_p": 2})):
        with pytest.raises(BadOptionsError) as error:
            make()
        assert str(error.value) == message


def test_checked_model_refuses_unknown_names_and_changes():
    with pytest.raises(BadOptionsError, match='unknown option "topp" = 1; did you mean "top_p"'):
        Checked(topp=1)
    with pytest.raises(ValueError, match="frozen"):
        Checked().top_p = 0.5
