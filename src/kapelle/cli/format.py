"""The former names of functions for text, tables, figures and states."""

from collections.abc import Iterator
from typing import Any

from kapelle.cli import figures, layout, states, text, view
from kapelle.cli.layout import STATUS_STYLE as STATUS_STYLE
from kapelle.cli.layout import command_lines as command_lines
from kapelle.cli.layout import paint as paint
from kapelle.cli.layout import terminal_width as terminal_width
from kapelle.cli.states import DONE as DONE
from kapelle.cli.states import ERROR as ERROR
from kapelle.cli.states import INPUT_NEEDED as INPUT_NEEDED
from kapelle.cli.states import WORK_FAILED as WORK_FAILED
from kapelle.cli.states import exit_code as exit_code
from kapelle.cli.states import exit_code_of_all as exit_code_of_all
from kapelle.cli.text import clean as clean
from kapelle.cli.text import one_line as one_line

clean_painted = text.clean_except_colours
shown = text.shorten_ids_on_terminal
last_lines = text.last_lines
telling_lines = text.last_output_lines
reason_lines = text.reason_lines
columns_of = text.cell_width
fit = text.cut_text
short_title = text.cut_title
colourful = layout.uses_colours
table = layout.format_table
wrapped = layout.wrap_line
mark = layout.check_mark
field = layout.field_line
fields = layout.field_lines
moment = figures.parse_time
now = figures.now
local = figures.local_time
short = figures.format_seconds
elapsed_s = figures.elapsed_s
between = figures.format_elapsed
until = figures.format_time_left
size = figures.format_size
dollars = figures.format_usd
usd_limit = figures.format_usd_limit
cost = figures.format_cost
settled = states.is_settled
finished = states.is_finished
status_words = states.describe_status
marks = states.describe_marks
doing_words = states.describe_activity
waiting_words = states.waiting_reason
delivery_words = states.describe_delivery
repository_path = view.repository_path


def heading(
    item: dict[str, Any], reason: str | None, styles: dict[str, str] = STATUS_STYLE
) -> Iterator[str]:
    status = paint(item["status"], styles.get(item["status"]))
    return view.heading_lines(item["title"], item["id"], status, reason)
