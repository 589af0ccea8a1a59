"""What a process is to do, on its command line."""

from __future__ import annotations

import dataclasses
import json

from tf_amp.tools.bench.job import Target


@dataclasses.dataclass(frozen=True)
class Task:
    """What a process is to do.

    Attributes:
      target: what is run.
      method: as on the command line.
      mode: "train" or "infer".
      batch: examples per step; None where a script has its own.
      seconds: for which a step is called that is not a script's.
      journal: path of the file to write.
    """

    target: Target
    method: str
    mode: str
    batch: int | None
    seconds: float
    journal: str

    def to_json(self) -> str:
        """Return it on one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Return what `to_json` has written."""
        fields = json.loads(text)
        arguments = tuple(fields["target"].pop("arguments"))
        target = Target(arguments=arguments, **fields.pop("target"))
        return cls(target=target, **fields)
