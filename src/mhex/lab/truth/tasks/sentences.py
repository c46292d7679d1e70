"""Sentences from a grammar, whose words decide the class: a word of praise or blame, a negation, or two of these."""

import torch

from mhex.lab.truth.task import Sentence, register_task

GOOD = ("good", "great", "lovely", "fine", "superb", "charming")
BAD = ("bad", "awful", "poor", "dull", "ugly", "terrible")
_IDLE = ("large", "small", "old", "new", "red", "green", "round", "local")
_NOUNS = ("film", "book", "hotel", "garden", "song", "house", "car", "coat")
_OPENINGS = ("yesterday", "in short", "at first", "last year", "on monday", "as we know")
_ENDINGS = ("in the town", "by the river", "for a week", "with my friends", "on that day", "near the station")
Marked = list[tuple[str, int | None]]  # words with their signs


class _Writer:
    """Chooses words by a generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def number(self, options: int) -> int:
        return int(torch.randint(options, (), generator=self.generator))

    def choose(self, words: tuple[str, ...]) -> str:
        return words[self.number(len(words))]

    def idle(self, text: str) -> Marked:
        return [(word, 0) for word in text.split()]

    def sentence(self, clauses: Marked, label: int) -> Sentence:
        """Clauses between an opening and an ending, which say nothing."""
        words = [*self.idle(self.choose(_OPENINGS)), *clauses, *self.idle(self.choose(_ENDINGS))]
        return Sentence(tuple(word for word, _ in words), label, tuple(sign for _, sign in words))


@register_task("words", title="A word of praise or blame decides", classes=("bad", "good"), kind="text")
def words(generator: torch.Generator) -> Sentence:
    """One word of praise or blame, and a clause that says nothing, in either order."""
    writer = _Writer(generator)
    label = writer.number(2)
    clauses = [
        [*writer.idle(f"the {writer.choose(_NOUNS)} was"), (writer.choose(GOOD if label else BAD), 1)],
        writer.idle(f"the {writer.choose(_NOUNS)} was {writer.choose(_IDLE)}"),
    ]
    first = writer.number(2)
    return writer.sentence([*clauses[first], ("and", 0), *clauses[1 - first]], label)


@register_task(
    "negation", title="A word of praise or blame decides, and not turns it round", classes=("bad", "good"), kind="text"
)
def negation(generator: torch.Generator) -> Sentence:
    """As the task words; in half of the sentences "not" stands before the word, and decides with it."""
    writer = _Writer(generator)
    label, negated = writer.number(2), writer.number(2)
    word = writer.choose(GOOD if label != negated else BAD)
    # Without "good" the network may read "not" as it likes; without "not" the class changes.
    praise: Marked = [("not", 1), (word, None)] if negated else [(word, 1)]
    clauses = [
        [*writer.idle(f"the {writer.choose(_NOUNS)} was"), *praise],
        writer.idle(f"the {writer.choose(_NOUNS)} was {writer.choose(_IDLE)}"),
    ]
    first = writer.number(2)
    return writer.sentence([*clauses[first], ("and", 0), *clauses[1 - first]], label)


@register_task(
    "both-words",
    title="What is said of the food and of the staff decides together",
    classes=("both bad", "staff good", "food good", "both good"),
    kind="text",
)
def both_words(generator: torch.Generator) -> Sentence:
    """Praise or blame of food and of staff, in either order; each pair is a class."""
    writer = _Writer(generator)
    food, staff = writer.number(2), writer.number(2)
    clauses: list[Marked] = []
    for noun, good in (("food", food), ("staff", staff)):
        clauses.append([("the", 0), (noun, None), ("was", 0), (writer.choose(GOOD if good else BAD), 1)])
    first = writer.number(2)
    return writer.sentence([*clauses[first], ("and", 0), *clauses[1 - first]], 2 * food + staff)
