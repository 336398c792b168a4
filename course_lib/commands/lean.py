"""What the commands do without, so that they start sooner. It is imported before all of them, and by pytest.

jsonschema, which nbformat and JupyterLab import, offers a check of internationalised addresses, and the package that
has it compiles 38 grammars when it is imported: 1.6 s. No schema of a notebook, a setting or an event asks for it.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # jsonschema goes on without the check
