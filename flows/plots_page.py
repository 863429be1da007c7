"""Write the page in which `dvc plots` draws, and have DVC use it: DVC's own page loads vega's scripts from a CDN.

`make setup` runs `python -m flows.plots_page`. The page lies in the environment, and only this clone's DVC uses it.
"""

import subprocess
import sys
from pathlib import Path

import vl_convert

from tandem import files

PAGE = Path(sys.prefix) / "plots.html"
# DVC replaces {refresh_tag} and {plot_divs}. Without {scripts} in the page it leaves out its own.
HTML = """<!DOCTYPE html>
<html>
<head>
    <meta charset="utf-8">
    {refresh_tag}
    <title>DVC Plot</title>
    <script>%s</script>
</head>
<body>
    {plot_divs}
</body>
</html>
"""


def page() -> str:
    # DVC calls vegaEmbed. Version 5 of Vega-Lite is the one that .dvc/plots/ names.
    return HTML % vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", "5.21")


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    setting = ("--local", "plots.html_template", str(PAGE))
    subprocess.run([sys.executable, "-m", "dvc", "config", *setting], cwd=files.ROOT, check=True)


if __name__ == "__main__":
    main()
