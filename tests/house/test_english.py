"""Names say what they hold, and docstrings are sentences as NumPy's documentation has them."""

import ast
import re
from pathlib import Path

from support.each import for_each

ROOT = Path(__file__).resolve().parents[2] / "h5stream"

VAGUE = {"found", "there", "given", "ours", "said", "told", "known", "asked", "alike", "left", "some", "these", "those"}
VAGUE |= {"thing", "things", "whose"}

KEPT = {
    "advice/cost.py": {"ours", "asked"},
    "advice/doctor.py": {"found"},
    "advice/inspection.py": {"asked"},
    "advice/listing.py": {"asked", "some"},
    "advice/tune.py": {"left"},
    "storage/file/catalogue.py": {"asked"},
    "storage/headers/headers.py": {"said"},
}
"""Names that files and output hold, by module."""

TRANSLATED = (
    r"^(What|Of|Those|Whoever|Whose|Where|As|Such)\b",
    r"\bTell whether\b|\b(said|told) (of|that|which|how|what|whether)\b",
    r"\blies?\b|\blying\b",
    r"\b(alike|unlike)\b",
    r"\bone behind (the|an)other\b",
    r"\bas (many|much|long|far) as there\b",
    r"\bsee to it\b|\b[Ll]et go\b",
)
"""Of translated sentences."""


@for_each(sorted(ROOT.rglob("*.py")))
def test_names_and_docstrings_read_as_english(path):
    module, vague, translated = str(path.relative_to(ROOT)), set(), []
    for node in ast.walk(ast.parse(path.read_text())):
        name = getattr(node, "id", None) if isinstance(getattr(node, "ctx", None), ast.Store) else None
        name = node.arg if isinstance(node, ast.arg) else name
        vague |= VAGUE & {name}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            first = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
            translated += [first for pattern in TRANSLATED if re.search(pattern, first)]
    assert vague <= KEPT.get(module, set())
    assert translated == []
