"""The label map: which class logit means which category of the data set."""

from typing import NamedTuple


class LabelMap(NamedTuple):
    """Labels 0..N-1 in the order of rising category id, made once from the train split and kept in every checkpoint."""

    category_ids: tuple[int, ...]
    """The data set's own id of each label."""
    names: tuple[str, ...]
    """The name of each label."""

    def to_plain(self) -> dict[int, dict]:
        """`{label: {"id": category id, "name": name}}`, as checkpoints and summaries hold it."""
        pairs = zip(self.category_ids, self.names, strict=True)
        return {label: {"id": category_id, "name": name} for label, (category_id, name) in enumerate(pairs)}

    @classmethod
    def from_plain(cls, plain: dict) -> "LabelMap":
        """The inverse of `to_plain`; keys may have become strings, as JSON makes them."""
        entries = [plain[key] for key in sorted(plain, key=int)]
        return cls(tuple(int(e["id"]) for e in entries), tuple(str(e["name"]) for e in entries))
