"""Options that drafts of published heads share, with their meanings; those of ``Reading`` are empty for "as the file
says"."""

from __future__ import annotations

from typing import Annotated

HeadPath = Annotated[str, "a published head: a folder, a .safetensors file beside its config.json, or trained"]
LayersText = Annotated[str, "outputs of the target's layers that it reads, from 0, as 2-15-27; empty: as the file says"]
StatesText = Annotated[
    str, "its own states that it goes on from, before or after its last norm; empty: as the file says"
]
IdsText = Annotated[str, "what d2t holds: offset or id; empty: as the file says"]
WindowText = Annotated[str, "tokens over which a layer with a window attends, 0 for all; empty: as the file says"]
EmbeddingText = Annotated[str, "whose embeddings it reads: own or target; empty: as the file says"]
InsideText = Annotated[str, "what a slot sees of its block in a layer with a window: all or causal"]
FirstText = Annotated[str, "the block's first slot: given, or proposes; empty: as the file says"]
WeightsText = Annotated[str, "float as stored, or matrices rounded to int8 or int4, those that read tokens among them"]
PickleFlag = Annotated[bool, "read a pickle too, its weights alone"]
MostProposals = Annotated[int, "most proposals of a step, for any K; 0 is no limit"]
