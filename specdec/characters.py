"""Characters of texts: tokens decoded as they are, and halves of characters joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def decoded(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], special: bool = True) -> str:
    """Return the text of tokens, with blanks as the tokens have them; without special tokens unless ``special``.

    Some tokenizers remove blanks before punctuation by default: a stop string would then be looked for in another text
    than the one that is shown, and a text would change when more tokens follow.

    Example: ``decoded(tokenizer, [72, 105])``
    """
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    return text


def whole_characters(text: str) -> str:
    """Return ``text`` with two halves of a character joined (JSON writes some characters as two), and a half without
    its other one as U+FFFD, so that it can be written to any file.

    Example: ``whole_characters("\\ud83d\\ude00!")`` is ``"😀!"``.
    """
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
