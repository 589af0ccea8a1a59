"""What `tf-amp tune` has left unmeasured, and the reason in one line."""

from __future__ import annotations

from dataclasses import dataclass, field

from tf_amp.commands.shared import left_alone
from tf_amp.config.amp_config import DEFAULT_LEVEL
from tf_amp.measuring.progress import Measuring, Note, Refused, Waiting


@dataclass
class Summary:
    """Follows the graphs of a script from their first to the last.

    Attributes:
      level: at which graphs were planned last; "": none were.
      has_waited: whether another process measured meanwhile.
    """

    level: str = ""
    has_waited: bool = False
    _left: frozenset[str] = frozenset()
    _refused: dict[str, None] = field(default_factory=dict)
    _has_asked: bool = False
    _is_broken: bool = False
    _tried: int = 0
    _prices: int = 0

    def read(self, note: Note) -> None:
        """Follow what is measured for one graph, and what is not."""
        if isinstance(note, Measuring):
            self._tried += bool(note.op)
            self._prices += len(note.rows)
        elif isinstance(note, Waiting):
            self.has_waited = True
        elif isinstance(note, Refused):
            self._refused[note.why] = None
        else:
            self._has_asked = True
            self._is_broken = note.is_broken
            # What was left of an earlier graph may be known by now.
            self._left = (self._left - note.asked) | note.missing

    @property
    def reason(self) -> str:
        """What is to be said of a script that came to its end; "": nothing."""
        if left := len(self._left):
            cause = "measuring has failed" if self._is_broken else "time was over"
            return f"{cause}, {left} left; run it again"
        if self._prices:
            return ""
        if self._tried:
            return f"none of {self._tried} operations could be measured"
        if not self.level:
            return f"nothing was measured: {left_alone.why_no_graph()}"
        if self._refused and not self._has_asked:
            return f"nothing was measured: {', '.join(self._refused)}"
        if self.level != DEFAULT_LEVEL:
            return f"level {self.level} does not look at costs"
        return "nothing was left to measure"
