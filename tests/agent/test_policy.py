"""A checkpoint made here, of a few thousand weights: it says nothing useful, and what is asked of the provider is all there."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.errors import ProviderError
from agent.messages import Message
from agent.providers import policy
from agent.providers.policy import LocalPolicy
from agent.spec import ModelChoice
from evaluator.timing.exclusive import DeviceLock

ASK = [Message("system", "be brief"), Message("user", "hello there")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("checkpoint")
    letters = [chr(code) for code in range(32, 127)]
    vocabulary = {piece: number for number, piece in enumerate(["<end>", "<unknown>", *letters])}
    words = tokenizers.models.WordLevel(vocabulary, unk_token="<unknown>")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", unk_token="<unknown>"
    )
    fast.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config)
    # Logits are 0 for <end> and random around 0 for 96 others, so that an answer ends at its limit alone.
    model.lm_head.weight.data[0] = 0
    model.save_pretrained(folder, safe_serialization=True)
    return folder


def test_a_checkpoint_answers_with_its_tokens_counted(checkpoint: Path) -> None:
    provider = LocalPolicy(ModelChoice(str(checkpoint), provider="policy", origin="policy"))
    first = provider.complete(ASK, max_tokens=5)
    again = provider.complete(ASK, max_tokens=5)
    assert first.text == again.text, "without a temperature the answer is the likeliest"
    assert (first.finish, first.completion_tokens) == ("length", 5)
    assert first.prompt_tokens > 10
    assert not first.estimated
    assert first.model == f"policy:{checkpoint.name}", "a folder's name and not its path"


def test_an_answer_that_ends_by_itself_is_told_from_one_that_was_cut(
    checkpoint: Path, tmp_path: Path
) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    folder = tmp_path / "ending"
    shutil.copytree(checkpoint, folder)
    weights = safetensors.load_file(folder / "model.safetensors")
    weights["lm_head.weight"].zero_()  # every logit is 0, and the likeliest token is the first one: <end>
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    ended = LocalPolicy(ModelChoice(str(folder), provider="policy")).complete(ASK, max_tokens=1)
    assert (ended.text, ended.finish, ended.completion_tokens) == ("", "stop", 1), (
        "an end at the limit is an end"
    )


def test_a_prompt_longer_than_the_checkpoint_reads_is_refused(checkpoint: Path) -> None:
    provider = LocalPolicy(ModelChoice(str(checkpoint), provider="policy"))
    with pytest.raises(ProviderError, match="more than the checkpoint can read"):
        provider.complete([Message("user", "x" * 100)])


def test_a_generation_ends_at_its_time_out(checkpoint: Path) -> None:
    provider = LocalPolicy(ModelChoice(str(checkpoint), provider="policy", timeout_s=0.0))
    assert provider.complete(ASK, max_tokens=30).completion_tokens == 1


def test_a_folder_without_a_checkpoint_is_a_clear_reason(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ProviderError, match=f"folder {missing} does not exist"):
        LocalPolicy(ModelChoice(str(missing), provider="policy", origin="policy"))
    with pytest.raises(ProviderError, match=r"no config\.json"):
        LocalPolicy(ModelChoice(str(tmp_path), provider="policy"))


def test_code_that_comes_with_a_checkpoint_is_not_run(tmp_path: Path, checkpoint: Path) -> None:
    planted = tmp_path / "ran"
    config = json.loads((checkpoint / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    config["model_type"] = "never_heard_of"
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(planted)!r}, 'w')\n")
    with pytest.raises(ProviderError, match="cannot be loaded"):
        LocalPolicy(ModelChoice(str(folder), provider="policy"))
    assert not planted.exists()


def test_weights_in_a_pickle_are_not_unpacked(tmp_path: Path, checkpoint: Path) -> None:
    torch = pytest.importorskip("torch")
    planted, folder = tmp_path / "ran", tmp_path / "pickled"
    shutil.copytree(checkpoint, folder)
    (folder / "model.safetensors").unlink()
    torch.save(Planting(str(planted)), folder / "pytorch_model.bin")
    with pytest.raises(ProviderError, match="cannot be loaded"):
        LocalPolicy(ModelChoice(str(folder), provider="policy"))
    assert not planted.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert planted.exists(), "the file that was planted does nothing, so the test shows nothing"


class Planting:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


class Timer:
    """Somebody who times: from its own open files, as the referee's process would."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.thread = threading.Thread(target=self._time, daemon=True)
        self.thread.start()

    def _time(self) -> None:
        with DeviceLock("cpu").exclusive():
            self.began.set()
            self.may_end.wait(20)

    def end(self) -> None:
        self.may_end.set()
        self.thread.join(20)


@pytest.fixture
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Locks of this test alone: others of this machine time on the same device."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    policy._device_lock.cache_clear()
    yield
    policy._device_lock.cache_clear()


@pytest.mark.usefixtures("own_locks")
def test_nothing_is_generated_while_somebody_times(checkpoint: Path) -> None:
    provider = LocalPolicy(ModelChoice(str(checkpoint), provider="policy"))
    timer = Timer()
    assert timer.began.wait(20)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(provider.complete, ASK, max_tokens=3)
        with pytest.raises(TimeoutError):
            answer.result(0.5)
        timer.end()
        assert answer.result(20).completion_tokens >= 1


@pytest.mark.usefixtures("own_locks")
def test_a_generation_lets_others_time_between_two_tokens(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = LocalPolicy(ModelChoice(str(checkpoint), provider="policy", timeout_s=2.0))
    forward, calls, timers = provider._model.forward, [], []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(time.monotonic())
        if len(calls) == 2:
            timers.append(Timer())
            time.sleep(0.2)  # it stands at the gate
            assert not timers[0].began.is_set(), "it times while a token is made"
        return forward(*args, **kwargs)

    monkeypatch.setattr(provider._model, "forward", counted)
    monkeypatch.setattr(provider._model.generation_config, "eos_token_id", None)
    monkeypatch.setattr("agent.providers.policy._end_tokens", lambda *_: set())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(provider.complete, ASK, max_tokens=4)
        while not timers:
            time.sleep(0.01)
        assert timers[0].began.wait(20)
        time.sleep(2.5)  # longer than the time-out: who gives way loses nothing by it
        assert len(calls) == 2, "no token is made while somebody times"
        timers[0].end()
        assert answer.result(20).completion_tokens == 4
