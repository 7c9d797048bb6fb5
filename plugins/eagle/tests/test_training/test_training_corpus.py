"""The recorder and the corpus: what is written is what the target thought, and nothing is asked twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.api import CommittedBatch, Generation, PluginError, RequestView, SamplingFacts
from paceline_eagle.training.corpus import answer, check_settings, recorded_prompts, tokenized
from paceline_eagle.training.dataset import Dataset, choose_vocabulary, held_out_digests, load_dataset
from paceline_eagle.training.recorder import Recorder
from paceline_eagle.training.shards import Sample, ShardWriter, prompt_digest, read_index, read_shard, shard_files

LAYERS = (0, 1, 2, "final")


def samples_of(folder: Path) -> dict[str, Sample]:
    found = [sample for file in shard_files(folder) for sample in read_shard(file, LAYERS)]
    assert len({sample.prompt for sample in found}) == len(found), "a prompt is recorded twice"
    return {sample.prompt: sample for sample in found}


def reference_states(target: str, tokens: np.ndarray) -> dict[int | str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(target)
        states = model(torch.from_numpy(tokens)[None].long(), output_hidden_states=True).hidden_states
    return {layer: states[-1 if layer == "final" else layer][0] for layer in LAYERS}


def same(a: Mapping[str, Sample], b: Mapping[str, Sample]) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(one.tokens, b[key].tokens)
        and all(torch.equal(one.features[layer], b[key].features[layer]) for layer in LAYERS)
        for key, one in a.items()
    )


@pytest.mark.parametrize("engine", [{}, {"max_num_batched_tokens": 4}, {"num_gpu_blocks_override": 9, "block_size": 4}])
def test_records_the_features_of_a_plain_forward(
    engine: dict[str, Any], target: str, texts: list[str], record: Callable[..., Any], options: Any, tmp_path: Path
) -> None:
    with record(tmp_path, max_model_len=32, **engine) as session:
        prompts = tokenized(session, texts[:5])
        generations = {}
        answer(session, prompts, tmp_path, options())
        for digest, prompt in prompts.items():
            generations[digest] = session.generate([prompt], max_tokens=10)[0]
        num_preemptions = session._llm.engine.stats.num_preemptions
    assert bool(num_preemptions) == ("num_gpu_blocks_override" in engine)
    found = [sample for file in shard_files(tmp_path) for sample in read_shard(file, LAYERS)]
    assert len(found) == 10  # each was asked twice here
    for sample in found:
        whole = [*prompts[sample.prompt], *generations[sample.prompt].token_ids]
        assert sample.num_prompt_tokens == len(prompts[sample.prompt])
        assert sample.tokens.tolist() == whole[:-2]  # the last token is never fed, the step that ends is not told
        for layer, states in reference_states(target, sample.tokens).items():
            torch.testing.assert_close(sample.features[layer].float(), states, rtol=2e-3, atol=2e-3)


def test_refuses_what_a_prefix_hit_skips(record: Callable[..., Any], tmp_path: Path) -> None:
    prompt = list(range(3, 40))
    with record(tmp_path, enable_prefix_caching=True) as session:
        session.generate([prompt], max_tokens=4)
        with pytest.raises(PluginError, match="the next row to record is that of position 0, and position 3"):
            session.generate([prompt], max_tokens=4)
        with pytest.raises(PluginError, match="start the engine with enable_prefix_caching=False"):
            session.generate([prompt], max_tokens=4)


@pytest.mark.parametrize(("value", "shown"), [(7e4, "70000"), (float("nan"), "nan")])
def test_refuses_features_beyond_float16(value: float, shown: str, tmp_path: Path) -> None:
    request = RequestView(
        request_id="a",
        tokens=np.array([3, 4, 5]),
        num_prompt_tokens=2,
        sampling=SamplingFacts(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0),
        trust_domain="",
    )
    rows = np.arange(2)
    committed = CommittedBatch(
        requests=(request,),
        row_request=np.zeros(2, dtype=np.int64),
        positions=rows,
        tokens=request.tokens[:2],
        next_tokens=request.tokens[1:],
        computed=np.array([[0, 2]]),
        restored=np.array([[0, 0]]),
        emitted=np.array([[2, 3]]),
        recomputation=np.zeros(1, dtype=bool),
        kv={},
        features={4: torch.tensor([[1.0, 2.0], [value, 0.0]])},
    )
    with pytest.raises(PluginError, match=f"features of layer 4 reach {shown}, and float16, .* 65504; choose other"):
        Recorder(tmp_path).observe(committed)


class StopAfter:
    """A session that is interrupted when ``count`` prompts have their answers."""

    def __init__(self, session: Any, count: int) -> None:
        self._session = session
        self._left = count
        self.asked: list[list[int]] = []

    def generate(self, prompts: list[list[int]], *, on_finished: Callable[..., None], **how: Any) -> Any:
        def stop(index: int, generation: Generation) -> None:
            on_finished(index, generation)
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt

        self.asked = list(prompts)
        return self._session.generate(prompts, on_finished=stop, **how)


def test_goes_on_where_it_was_interrupted(
    corpus: Any, record: Callable[..., Any], options: Any, tmp_path: Path
) -> None:
    with record(tmp_path) as session, pytest.raises(KeyboardInterrupt):
        answer(StopAfter(session, 5), corpus.prompts, tmp_path, options())
    done = recorded_prompts(tmp_path)
    assert 5 <= len(done) < 12
    with record(tmp_path) as session:
        rest = StopAfter(session, -1)
        answer(rest, corpus.prompts, tmp_path, options())
    assert {prompt_digest(prompt) for prompt in rest.asked} == corpus.prompts.keys() - done
    assert same(samples_of(tmp_path), samples_of(corpus.folder))


def test_an_aborted_request_leaves_nothing(record: Callable[..., Any], tmp_path: Path) -> None:
    with record(tmp_path, max_num_batched_tokens=8) as session, pytest.raises(KeyboardInterrupt):
        # The second prompt is still being computed when the first has its answer.
        StopAfter(session, 1).generate([[3, 4], [5] * 90], on_finished=lambda index, generation: None, max_tokens=4)
    assert recorded_prompts(tmp_path) == {prompt_digest([3, 4])}


def test_shards_appear_whole(tmp_path: Path) -> None:
    def sample(prompt: str, rows: int) -> Sample:
        features = {0: torch.randn(rows, 4).half(), "final": torch.randn(rows, 4).half()}
        return Sample(prompt, 2, np.arange(rows, dtype=np.int32), features)

    first, second, third = sample("a", 3), sample("b", 5), sample("c", 2)
    writer = ShardWriter(tmp_path, 8)
    writer.add(first)
    assert shard_files(tmp_path) == []
    writer.add(second)
    assert [read_index(file) for file in shard_files(tmp_path)] == [[("a", 2, 3), ("b", 2, 5)]]
    ShardWriter(tmp_path, 1).add(third)  # a later run
    files = shard_files(tmp_path)
    assert [file.name for file in files] == ["shard-00000.safetensors", "shard-00001.safetensors"]
    found = [one for file in files for one in read_shard(file, (0, "final"))]
    for one, other in zip(found, (first, second, third), strict=True):
        assert np.array_equal(one.tokens, other.tokens)
        assert all(torch.equal(one.features[layer], other.features[layer]) for layer in (0, "final"))


def test_a_shard_cut_off_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(tensors: Any, file: Path, metadata: Any) -> None:
        Path(file).write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr("paceline_eagle.training.shards.save_file", cut_off)
    with pytest.raises(OSError, match="no space left"):
        ShardWriter(tmp_path, 1).add(Sample("a", 1, np.arange(3, dtype=np.int32), {0: torch.zeros(3, 2).half()}))
    assert recorded_prompts(tmp_path) == set()


@pytest.mark.parametrize("content", [b"", b"nothing of the kind, but long enough to be read as a header"])
def test_names_a_broken_shard(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "shard-00000.safetensors").write_bytes(content)
    with pytest.raises(PluginError, match=r"shard-00000.safetensors\" is no shard .* delete it, and it is made again"):
        recorded_prompts(tmp_path)


def test_refuses_another_corpus(plain_session: Any, options: Any, tmp_path: Path) -> None:
    facts = plain_session.facts
    check_settings(tmp_path, [0, 1, "final"], facts, options())
    check_settings(tmp_path, [1, "final"], facts, options())  # some of what is recorded
    with pytest.raises(PluginError, match=r"made with answer_tokens = 10, and 11 is asked for; ask for the same"):
        check_settings(tmp_path, [1, "final"], facts, options(answer_tokens=11))
    with pytest.raises(PluginError, match=r"made with layers = \[0, 1, 'final'\], and \[2, 'final'\] is asked"):
        check_settings(tmp_path, [2, "final"], facts, options())
    settings = json.loads((tmp_path / "corpus.json").read_text())
    (tmp_path / "corpus.json").write_text(json.dumps(settings | {"weights": "of another"}))
    with pytest.raises(PluginError, match=r"made with weights = 'of another'"):
        check_settings(tmp_path, [1, "final"], facts, options())
    (tmp_path / "corpus.json").write_text("[")
    with pytest.raises(PluginError, match=r"cannot be read: .*; delete the folder of the corpus"):
        check_settings(tmp_path, [1, "final"], facts, options())
    (tmp_path / "corpus.json").write_text("[]")
    with pytest.raises(PluginError, match="holds no JSON object; delete the folder"):
        check_settings(tmp_path, [1, "final"], facts, options())


def test_holds_out_by_content(corpus: Any) -> None:
    digests = list(corpus.prompts)
    held_out = held_out_digests(digests, 3)
    assert len(held_out) == 3
    assert held_out == held_out_digests([*reversed(digests), *digests], 3)
    data = load_dataset(corpus.folder, (1,), digests, 3)
    assert {sample.prompt for sample in data.held_out} == held_out
    assert {sample.prompt for sample in data.training} == set(digests) - held_out
    others = load_dataset(corpus.folder, (1,), digests[:6], 2)  # what else lies in the folder is not read
    assert {sample.prompt for sample in others.training + others.held_out} == set(digests[:6])


def test_says_that_nothing_is_left(corpus: Any) -> None:
    with pytest.raises(PluginError, match="holds 12 usable answers, and 12 prompts are held out, so none is left"):
        load_dataset(corpus.folder, (1,), corpus.prompts, 12)


def test_drafts_the_most_frequent_tokens() -> None:
    def sample(prompt: list[int], answered: list[int]) -> Sample:
        return Sample("a", len(prompt), np.array(prompt + answered, dtype=np.int32), {})

    training = [sample([9, 9, 8, 9, 3], [7, 3, 7]), sample([6, 8], [3, 5, 4, 7])]
    data = Dataset(training, [sample([1, 1], [7, 7, 6, 2])])
    vocabulary = choose_vocabulary(data, 3)
    assert vocabulary.ids.tolist() == [3, 4, 7] and vocabulary.ids.dtype == np.int64  # 4 before 5: as frequent, lower
    assert vocabulary.coverage == 0.5
    assert choose_vocabulary(data, 6).ids.tolist() == [3, 4, 5, 7, 8, 9]  # then those of the prompts: 9, 8 before 6
    everything = choose_vocabulary(data, 99)
    assert everything.ids.tolist() == [3, 4, 5, 6, 7, 8, 9]  # nothing of what is held out
    assert everything.coverage == 0.75
