#!/usr/bin/env bash
# The documentation as a site, in the folder that is the first argument: pages, mathematics and the reference of the Python package. It fails where a
# link leads nowhere, inside of the site or, in README and the pages, to a file of this repository. The second argument is a virtual environment that
# `environment.sh` has made; without one the script makes its own.
set -euo pipefail
cd "$(dirname "$0")/.."

site=${1:-$(mktemp -d)}
venv=${2:-}
if [ -z "$venv" ]; then
  venv=$(mktemp -d)
  trap 'rm -rf "$venv"' EXIT
  python3 -m venv "$venv"
  # ruff breaks the lines of signatures
  "$venv/bin/pip" install --quiet latex2mathml mkdocs-material mkdocstrings-python ruff
fi

repository=$(grep -oP '^repo_url: \K.*' mkdocs.yml)
missing=0
while IFS=: read -r page link; do
  path=${link#"$repository"/blob/main/}
  [ -e "$path" ] || { echo "$page links to $path, which is not there"; missing=1; }
done < <(grep -oP "$repository/blob/main/[^)#\s\"]+" --with-filename README.md CONTRIBUTING.md docs/*.md docs/*/*.md | sed 's/:https/\t&/; s/\t:/:/')
[ "$missing" = 0 ]

PATH=$venv/bin:$PATH NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --quiet --strict --site-dir "$site"
echo "$(find "$site" -name '*.html' | wc -l) pages"
