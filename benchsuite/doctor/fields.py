"""What the fields of an examination's JSON mean, in words that the command's help shows."""

REPORT = {
    "head, target": "as they were given",
    "conventions": "how the head was read: name, value and source of each convention, and head_says: what the head "
    "itself says where an option says otherwise, else null",
    "verdict": "read rightly; read otherwise it accepts more; nothing to compare with; cannot tell",
    "accusation_error": "the largest probability that a right reading is accused, over all other readings",
    "better": "drafts of the readings that accept more, the best first",
    "tokens_needed": "tokens of the target's text that decide what it cannot tell; 0: it is decided, null: none would",
    "prompts, tokens": "how many prompts were answered, and the tokens of all answers",
    "places": "places of the answers that count; every reading proposes at each",
    "taken": "the reading that was examined",
    "others": "each other reading that loads",
    "not_loaded": "name and draft of each reading that does not load, and the reason",
    "seconds": "all that the examination took",
}
"""The fields of the whole."""

READING = {
    "name, draft": "the reading in words, and as a draft with its options",
    "accepted, accepted_error": "proposals accepted at a place, a mean, and its standard error over prompts",
    "by_chance": "the same where proposals are held against tokens half an answer further on",
    "beats_chance": "whether it is seen to accept more than that",
    "falls_off": "whether past the first position it accepts less than half of what first proposals for the same "
    "tokens do, which are made from the target's states",
    "positions": "of each position: tried, the places at which all proposals before it are right; share, how often it "
    "is right there; first_share, how often the first proposal for the same token is; and their standard errors, "
    "share_error and first_share_error",
}
"""The fields of a reading."""

OTHER = {
    "gain, gain_error": "proposals that it accepts more at a place, a mean over prompts, and its standard error",
    "outcome": "accepts more; no better; open",
    "prompts_needed": "prompts that decide an open one; 0: it is decided, null: none would",
}
"""The fields that another reading has beside those."""


def fields_text() -> str:
    """All fields with their meanings, a line each."""
    parts = {"fields of the JSON": REPORT, "of a reading": READING, "of another reading also": OTHER}
    lines = [
        line
        for title, fields in parts.items()
        for line in (f"{title}:", *(f"  {name}: {meaning}" for name, meaning in fields.items()))
    ]
    return "\n".join([*lines, "A number that is not known, as the error of a single prompt, is null."])
