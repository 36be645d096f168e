"""`kapelle merge` and `kapelle pr`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kapelle.cli import help_page
from kapelle.cli.ids import newest_work_argument, newest_works_argument, path_of, work_id
from kapelle.cli.layout import field_lines
from kapelle.cli.output import data, document, plain_line, say, show_error
from kapelle.cli.parser import command, flag, json_flag, option, reports
from kapelle.cli.result import Result
from kapelle.cli.states import describe_delivery
from kapelle.cli.text import one_line
from kapelle.cli.values import listed, refuse
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import TRIES
from kapelle.domain.errors import InvalidInput, KapelleError

if TYPE_CHECKING:
    from kapelle.client.records import CommentJson, MergeJson, MergePreviewJson, UndoJson


@command("merge", "kapelle merge", "kapelle merge 4f2xq 9d3kk --squash", "kapelle merge --undo")
@newest_works_argument
@option("--into", metavar="BRANCH", help="Branch to merge into; by default the base of the work.")
@flag("--squash", help="One commit of all changes.")
@flag("--rebase", help="The commits one by one onto the base.")
@option("--message", "-m", metavar="TEXT", help="Message of the commit.")
@flag("--no-verify", help="No checks of the result if the base has moved.", group=help_page.CHECKS)
@flag("--preview", help="What the merge would do, without merging.")
@flag("--undo", help="Undo the last merge instead.")
@flag("--force", help="Merge even if the work is not completed.", group=help_page.CHECKS)
@json_flag
def merge(
    task_ids: Sequence[str],
    into: str | None,
    squash: bool,
    rebase: bool,
    message: str | None,
    no_verify: bool,
    preview: bool,
    undo: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Merge the branches of tasks and runs into their bases.

    They are merged in the order of their ids. If a base has moved since the checks of a task ran,
    Kapelle runs them again on the result, outside of your checkout; work that fails is left out,
    and the others go on. --undo takes the last merge back: the branch moves back if nothing was
    built on the merge, else a commit reverts it.
    """
    style = _merge_style(squash, rebase)
    if undo:
        options = {
            "--into": into,
            "--preview": preview,
            "--force": force,
            "--squash": squash,
            "--rebase": rebase,
            "--no-verify": no_verify,
        }
        for name, value in options.items():
            refuse((value, f"--undo and {name} exclude each other.", f"Leave {name} out."))
    client = DaemonConnection()
    ids = listed(task_ids, "An id") or [work_id(client, None)]
    if undo:
        return _undo_all(ids, message, as_json)
    if preview:
        return _preview_all(client, ids, into).print(as_json=as_json)
    body = {
        "into": into,
        "force": force,
        "verify": not no_verify,
        "style": style,
        "message": message,
    }
    return _merge_all(ids, body, as_json)


def _merge_style(squash: bool, rebase: bool) -> str:
    """Return the style of a merge as the API names it."""
    if squash and rebase:
        raise InvalidInput("--squash and --rebase exclude each other.", hint="Use one of them.")
    if squash:
        return "squash"
    if rebase:
        return "rebase"
    return "merge"


def _preview_all(client: DaemonConnection, ids: Sequence[str], into: str | None) -> Result:
    paths = [path_of(work_id(client, some_id), "merge") for some_id in ids]
    previews = [client.get(path, {"into": into}) for path in paths]
    lines: list[str] = []
    for preview in previews:
        lines += _preview_lines(preview)
    return Result(_one_or_all(previews, ids), lines)


def _one_or_all(answers: Sequence[object], ids: Sequence[str]) -> Any:
    """Return the answer for a single id, or the list of answers for several."""
    if len(ids) > 1:
        return answers
    return answers[0]


@command("pr", "kapelle pr 4f2xq --draft", "kapelle pr --show")
@newest_work_argument
@flag("--draft", help="A draft, which is the only way for failed work.")
@flag("--ready", help="Ready for review, as a new pull request is.")
@flag("--show", "show_only", help="The pull request and its comments, without a change.")
@flag("--force", help="Push even if the work contains a known secret.")
@reports
def pr(task_id: str | None, draft: bool, ready: bool, show_only: bool, force: bool) -> Result:
    """Push the work of a task or a run and open or update a pull request.

    Its description contains the prompt, the agent's claims, the checks and the cost.
    """
    if draft and ready:
        raise InvalidInput("--draft and --ready exclude each other.", hint="Use one of them.")
    client = DaemonConnection()
    path = path_of(work_id(client, task_id), "pr")
    if show_only:
        answer = client.get(path)
    else:
        # Without either option an existing pull request stays as people have it.
        is_draft = draft if draft or ready else None
        answer = client.post(path, {"draft": is_draft, "force": force}, tries=TRIES)
    delivery = answer["delivery"]
    lines = [plain_line(delivery["url"])] if delivery["url"] else []
    remarks = [describe_delivery(delivery), *_comment_lines(answer["comments"])]
    return Result(answer, lines, remarks, exit_code=0 if delivery["status"] == "delivered" else 1)


def _comment_lines(comments: "list[CommentJson]") -> Iterator[str]:
    for comment in comments:
        author = comment["author"]
        if comment["path"]:
            author += f" ({comment['path']})"
        yield f"{author}: {one_line(comment['text'], 300)}"


def _merge_all(ids: Sequence[str], body: Mapping[str, object], as_json: bool) -> int:
    """Merge in this order; work that is refused does not keep the others out."""
    merges = []
    codes = [0]
    for some_id in ids:
        try:
            merges.append(_merge(some_id, body))
            if not as_json:
                _show(merges[-1])
        except KapelleError as error:
            if len(ids) == 1:
                raise
            show_error(error, as_json=as_json)
            codes.append(error.exit_code)
    if as_json:
        document(_one_or_all(merges, ids))
    if len(ids) > 1:
        say(f"{len(merges)} of {len(ids)} are merged.")
    return max(codes)


def _undo_all(ids: Sequence[str], message: str | None, as_json: bool) -> int:
    """Undo the merges, the last one first."""
    client = DaemonConnection()
    answers = []
    for some_id in reversed(ids):
        path = path_of(work_id(client, some_id), "merge/undo")
        answers.append(client.post(path, {"message": message}))
    if as_json:
        document(_one_or_all(answers, ids))
        return 0
    for answer in answers:
        _show_undo(answer)
    return 0


def _show_undo(answer: "UndoJson") -> None:
    data(answer["commit"])
    how = "a commit reverts the merge"
    if answer["how"] == "moved_back":
        how = "the branch was moved back"
    if answer["checkout_updated"]:
        how += f"; the checkout {answer['checkout_updated']} was updated"
    say(f"Undid the merge of {answer['id']} into {answer['base']}: {how}.")
    say(f"Its work stays on its branch: `kapelle merge {answer['id']}` merges it again.")


def _merge(some_id: str, body: Mapping[str, object]) -> Any:
    """Merge one item; an interrupt cancels the merge."""
    client = DaemonConnection()
    path = path_of(work_id(client, some_id), "merge")
    try:
        return client.merge(path, body, lambda phase: say(f"{some_id}: {phase}"))
    except KeyboardInterrupt:
        client.delete(path)
        say(f"The merge of {some_id} is cancelled.")
        raise


def _show(merge: "MergeJson") -> None:
    """Print the outcome of a merge, with what the person should know about it."""
    data(merge["commit"] or "")
    if merge["already"]:
        say(f"{merge['base']} already contained {merge['id']}.")
        return
    facts = f"Merged {merge['id']} into {merge['base']}"
    if merge["signed"]:
        facts += ", signed"
    if merge["checks"]:
        facts += f"; {len(merge['checks'])} checks passed on the result"
    if merge["checkout_updated"]:
        facts += f"; the checkout {merge['checkout_updated']} was updated"
    say(f"{facts}.")
    for warning in _merge_warnings(merge):
        say(warning)


def _merge_warnings(merge: "MergeJson") -> Iterator[str]:
    hooks = merge["hooks_not_run"]
    if hooks:
        yield f"Hooks were not run: {', '.join(hooks)}. Add what they check to checks."
    if merge["identity_missing"]:
        yield (
            "Git knows no name for you, so the author of the merge is Kapelle: "
            'git config --global user.name "…"; git config --global user.email …'
        )
    if merge["signature_missing"]:
        yield (
            "Not signed: commit.gpgsign is set in this repository, and Kapelle reads only your "
            "own configuration: git config --global commit.gpgsign true"
        )
    if merge["trust_dropped"]:
        yield "The merge changed .kapelle, so the repository is not trusted any more: kapelle trust"


def _preview_lines(preview: "MergePreviewJson") -> Iterator[str]:
    """Return what a merge would do."""
    base = preview["base"]
    facts = {
        "id": preview["id"],
        "base": f"{base}: {preview['ahead']} ahead of it, {preview['behind']} behind",
        "conflicts": one_line(", ".join(preview["conflicts"]) or "none"),
        "in the way": "",
        "checks": "",
        "problem": one_line(preview["problem"] or ""),
        "not verified": one_line(" ".join(preview.get("doubts") or ())),
        "merged": "",
    }
    if preview["dirty"]:
        facts["in the way"] = f"uncommitted: {one_line(', '.join(preview['dirty']))}"
    if preview["check_again"]:
        facts["checks"] = f"run again on the result, because {base} has moved"
    if preview["already"]:
        facts["merged"] = f"{base} contains it already"
    return field_lines(facts)
