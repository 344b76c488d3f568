"""The dialect's tokenizer: a phrase of source is a token, and so is each word of a prompt.

An ordinary fast tokenizer of transformers, so that trainers take it as it is. Where several phrases begin alike the longest is taken;
that this gives back each program's own phrases is what :func:`check` proves for a grammar.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from experiments.dialect.grammar import Grammar
from experiments.dialect.prompts import PROMPT_WORDS

PAD, END, UNKNOWN = "<pad>", "<end>", "<unknown>"
_SPECIAL = frozenset("\\^$.|?*+()[]{}-")


class NotExact(ValueError):
    """A program does not come back as it was; the message says which and where."""


def _literal(text: str) -> str:
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in text)


def build_tokenizer(grammar: Grammar) -> PreTrainedTokenizerFast:
    """The tokenizer for a grammar's phrases and for prompts."""
    words = [PAD, END, UNKNOWN, *PROMPT_WORDS, *grammar.phrases]
    longest_first = sorted({*PROMPT_WORDS, *grammar.phrases}, key=lambda word: (-len(word), word))
    model = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    model.pre_tokenizer = Split(Regex("|".join(map(_literal, longest_first))), behavior="isolated")
    model.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def check(tokenizer: PreTrainedTokenizerFast, programs: Sequence[tuple[Sequence[str], str]]) -> None:
    """Raises :class:`NotExact` unless each program (phrases, source) is read as its phrases and written back exactly."""
    for pieces, source in programs:
        ids = tokenizer.encode(source, add_special_tokens=False)
        tokens = tokenizer.convert_ids_to_tokens(ids)
        if list(tokens) != list(pieces):
            place = next(
                (index for index, pair in enumerate(zip(tokens, pieces, strict=False)) if pair[0] != pair[1]),
                min(len(tokens), len(pieces)),
            )
            raise NotExact(f"read as other phrases from token {place} on: {tokens[place : place + 2]!r}")
        if tokenizer.decode(ids) != source:
            raise NotExact(f"not written back as it was: {source[:80]!r}")
