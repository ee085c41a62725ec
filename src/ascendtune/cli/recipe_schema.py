"""`ascendtune recipe schema`"""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON schema of recipes.

    \b
    ascendtune recipe schema > recipe.schema.json

    Editors complete and check keys when the first line of the recipe names that file:

    \b
    # yaml-language-server: $schema=recipe.schema.json
    """
    from ascendtune.recipe.recipe import Recipe

    print(json.dumps(Recipe.model_json_schema(), indent=2, ensure_ascii=False))
