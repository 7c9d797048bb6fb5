"""Tokens of two vocabularies as bytes, what they share, and text from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from paceline.api import PluginError
from paceline_draft_model.choosing import Rule
from paceline_draft_model.intersect import IntersectProposer
from paceline_draft_model.intersection import Intersection
from paceline_draft_model.retokenize import GrowingText, TextTokenizer, decoded
from paceline_draft_model.token_text import TokenizerKind, read_tokens, start_ids, tokenizer_kind

MARK = "\u2581"


def literal(*words: str) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token=words[0])))


def contents(tokenizer: Any) -> list[bytes]:
    tokens = read_tokens(tokenizer)
    return [tokens[token_id].content for token_id in sorted(tokens)]


def intersection(target: Any, draft: Any) -> Intersection:
    return Intersection("some/draft", target, draft, len(target), len(draft))


def pairs(target: Any, draft: Any) -> dict[str, str]:
    shared = intersection(target, draft)
    targets = target.convert_ids_to_tokens(shared.target_ids.tolist())
    return dict(zip(targets, draft.convert_ids_to_tokens(shared.draft_ids.tolist()), strict=True))


def test_byte_level_marks_are_bytes(byte_level: Any) -> None:
    tokenizer = byte_level("a \n\u00c3", " a", special=["<end>"])
    assert tokenizer_kind(tokenizer) is TokenizerKind.BYTE_LEVEL
    every_byte = byte_level("".join(map(chr, range(128))))
    assert contents(every_byte) == [bytes([byte]) for byte in range(128)]
    assert contents(tokenizer)[:3] == [b"a", b" ", b"\n"] and contents(tokenizer)[-2:] == [b" a", b"<end>"]
    assert [token.is_special for token in read_tokens(tokenizer).values()].count(True) == 1


def test_sentencepiece_marks_are_spaces_and_byte_tokens_bytes(sentencepiece: Any) -> None:
    tokenizer = sentencepiece([MARK, "t", "h", "e", f"{MARK}t", f"{MARK}th"])
    assert tokenizer_kind(tokenizer) is TokenizerKind.SENTENCEPIECE
    assert contents(tokenizer)[:256] == [bytes([byte]) for byte in range(256)]
    assert contents(tokenizer)[256:] == [b" ", b"t", b"h", b"e", b" t", b" th"]


def test_other_vocabularies_are_taken_literally() -> None:
    assert tokenizer_kind(literal("a", "b")) is TokenizerKind.LITERAL
    assert contents(literal("##a", "b")) == [b"##a", b"b"]


def test_start_ids(byte_level: Any, sentencepiece: Any) -> None:
    assert start_ids(byte_level("a")) == []
    with_start = sentencepiece(["a"], bos="<s>")
    assert start_ids(with_start) == [with_start.bos_token_id] == [257]


def test_intersection_of_byte_level_and_sentencepiece(byte_level: Any, sentencepiece: Any) -> None:
    target = byte_level("the z", " t", special=["<end>"])
    draft = sentencepiece([MARK, "t", "h", "e", f"{MARK}t"], bos="<end>")
    assert pairs(target, draft) == {
        "t": "t",
        "h": "h",
        "e": "e",
        "Ġ": MARK,
        "z": "<0x7A>",  # for want of a piece
        "Ġt": f"{MARK}t",
        "<end>": "<end>",
    }


def test_a_special_token_is_not_the_text_of_its_name(byte_level: Any) -> None:
    target = byte_level("ab", "ab")
    assert pairs(target, byte_level("ab", special=["ab"])) == {"a": "a", "b": "b"}


def test_tokens_that_end_and_begin_a_text_are_matched_by_role(byte_level: Any) -> None:
    target, draft = byte_level("ab", special=["<end>", "<s>"]), byte_level("ba", special=["</s>"])
    target.eos_token, draft.eos_token = "<end>", "</s>"
    target.bos_token, draft.bos_token = "<s>", "</s>"
    assert pairs(target, draft) == {"a": "a", "b": "b", "<end>": "</s>"}


def test_no_id_is_drafted_for_two(byte_level: Any, sentencepiece: Any) -> None:
    shared = intersection(sentencepiece(["a"]), sentencepiece(["a"]))
    assert len(set(shared.draft_ids.tolist())) == len(shared.draft_ids) == 256  # 0x61 is the piece "a"
    assert shared.draft_of(np.array([256, 0x61, 0x62])).tolist() == [256, -1, 0x62]
    assert shared.translate(np.array([0x61])) == [256]


def test_vocabularies_without_a_common_token_are_refused(byte_level: Any) -> None:
    words = r'draft model "some/draft" shares none of its 2 tokens with the 3 of the target; .*vocabulary="text"'
    with pytest.raises(PluginError, match=words):
        intersection(byte_level("abc"), byte_level("de"))


def test_what_the_draft_model_lacks_is_spelt_in_its_longest_pieces(byte_level: Any) -> None:
    target = byte_level("abcd", "ab", "cd", "abcd", special=["<end>"])
    draft = byte_level("dcba", "cd", special=["<unk>"])
    shared = intersection(target, draft)
    ids = target.get_vocab()
    tokens = shared.translate(np.array([ids["b"], ids["abcd"]]))
    assert draft.convert_ids_to_tokens(tokens) == ["b", "a", "b", "cd"]
    assert shared.translate(np.array([ids["<end>"]])) == [draft.convert_tokens_to_ids("d")]  # the rest it cannot spell
    draft.unk_token = "<unk>"
    spelt = draft.convert_ids_to_tokens(intersection(target, draft).translate(np.array([ids["<end>"]])))
    assert spelt == ["<unk>", "<unk>", "<unk>", "d", "<unk>"]


def test_only_shared_tokens_have_logits(byte_level: Any) -> None:
    shared = intersection(byte_level("abcd"), byte_level("xdby"))
    subject = IntersectProposer(None, shared, [], 4, Rule(False, 0.0))
    logits = subject._of_target(torch.tensor([[9.0, -5.0, -6.0, 8.0]]))
    assert logits.tolist() == [[-np.inf, -6.0, -np.inf, -5.0]]
    assert Rule(False, 0.1).confidence(logits, np.array([1])) == pytest.approx(1 / (1 + np.e))


def test_padded_ids_are_not_shared(byte_level: Any) -> None:
    shared = Intersection("some/draft", byte_level("abc"), byte_level("cba"), 2, 2)
    assert (shared.target_ids.tolist(), shared.draft_ids.tolist()) == ([1], [1])


@pytest.mark.parametrize("is_start", [True, False])
def test_text_goes_on_without_a_space_of_its_own(byte_level: Any, sentencepiece: Any, is_start: bool) -> None:
    pieces = [MARK, "b", "c", f"{MARK}b"]
    marked, plain = TextTokenizer("a", sentencepiece(pieces), 999), TextTokenizer("b", byte_level("bc \n"), 999)
    assert b"".join(marked.contents(marked.encode("b c", is_start))) == (b" b c" if is_start else b"b c")
    assert b"".join(plain.contents(plain.encode("b c", is_start))) == b"b c"
    assert b"".join(marked.written(marked.encode("b c", is_start), is_start)) == b"b c"


def test_a_literal_vocabulary_cannot_write_text() -> None:
    with pytest.raises(PluginError, match=r'that of "some/draft" is neither; .*vocabulary="intersect"'):
        TextTokenizer("some/draft", literal("a"), 1)


@pytest.mark.parametrize(
    ("content", "text", "is_whole"),
    [
        (b"a\xc3\xa4", "a\u00e4", True),
        (b"a\xc3", "a", False),
        (b"\xf0\x9f\x98", "", False),
        (b"\xffa", "\ufffda", True),
        (b"", "", True),
    ],
)
def test_a_character_that_has_only_begun_is_left_out(content: bytes, text: str, is_whole: bool) -> None:
    assert decoded(content) == (text, is_whole)


def growing(source: Any, own: Any, start: Sequence[int] = (), skipped: Sequence[int] = ()) -> GrowingText:
    tokenizers = TextTokenizer("target", source, 999), TextTokenizer("some/draft", own, 999)
    return GrowingText(*tokenizers, list(start), list(skipped))


def test_growing_text_is_the_whole_text_tokenised(byte_level: Any) -> None:
    source, own = byte_level("abcde", "ab", "cd"), byte_level("edcba", "bc", "ab")
    text = "".join(np.random.default_rng(1).choice(list("abcde"), 900).tolist())
    ids = np.array(source.encode(text))
    subject, lengths, most = growing(source, own), [*range(1, 40), 300, 301, *range(302, len(ids), 7)], 0
    encode, encoded = own.encode, []
    own.encode = lambda text, **settings: encoded.append(len(text)) or encode(text, **settings)
    for length in lengths:
        tokens, is_whole = subject.tokens(ids[:length])
        assert is_whole
        assert tokens.tolist() == encode(source.decode(ids[:length]))
        most = max(most, encoded[-1]) if length > 301 else 0
    assert most < 350, "only a tail is tokenised again"


def test_what_may_still_change_is_not_fixed(byte_level: Any) -> None:
    source, own = byte_level("abce"), byte_level("ecba", "bc")
    subject, ids = growing(source, own), np.array(source.encode("ae" * 100 + "bc"))
    assert own.decode(subject.tokens(ids[:-1])[0][-2:]) == "eb"
    assert subject._num_fixed_source > 100
    assert own.convert_ids_to_tokens(subject.tokens(ids)[0][-2:]) == ["e", "bc"]


def test_growing_text_between_the_kinds(byte_level: Any, sentencepiece: Any) -> None:
    plain, marked = byte_level("ab ", special=["<s>"]), sentencepiece([MARK, "a", "b"], bos="<s>")
    plain.bos_token = "<s>"
    for source, own in ((plain, marked), (marked, plain)):
        text = "ab ba" * 60
        ids = [source.bos_token_id, *source.encode(text, add_special_tokens=False)]
        subject = growing(source, own, start=start_ids(own), skipped=[source.bos_token_id])
        for length in (2, 5, 160, 170, len(ids) - 1, len(ids)):
            tokens, _ = subject.tokens(np.array(ids[:length]))
        assert tokens.tolist() == own.encode(text)
        assert subject._num_fixed_source > 200


def test_text_that_is_written_otherwise_is_never_fixed(byte_level: Any) -> None:
    source, own = byte_level("abz"), byte_level("ab")  # "z" is lost
    subject = growing(source, own)
    ids = np.array(source.encode("abz" * 100))
    assert subject.tokens(ids)[0].tolist() == own.encode("ab" * 100)
    assert subject._num_fixed_source == 0


def test_half_a_character_waits_for_the_other(byte_level: Any) -> None:
    source = byte_level("a\u00e4")
    subject = growing(source, source)
    ids = np.array(source.encode("a\u00e4"))
    assert len(ids) == 3
    assert [subject.tokens(ids[:n])[1] for n in (1, 2, 3)] == [True, False, True]
    assert subject.tokens(ids[:2])[0].tolist() == ids[:1].tolist()


def test_a_first_token_that_is_text_to_its_tokenizer_is_kept(byte_level: Any) -> None:
    """A chat template may begin with the token that a tokenizer calls its first, and never puts there itself."""
    source, own = byte_level("ab", special=["<s>"]), byte_level("ba", special=["<s>"])
    ids = np.array([source.convert_tokens_to_ids("<s>"), 0, 1])
    assert growing(source, own, skipped=start_ids(source)).tokens(ids)[0].tolist() == own.encode("<s>ab")
    assert growing(source, own, skipped=[int(ids[0])]).tokens(ids)[0].tolist() == own.encode("ab")
