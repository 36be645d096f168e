import type { CheckResult, Task } from '../../api/client';
import { actions, useAction } from '../../api/queries';
import type { components } from '../../api/schema';
import { shortCommit, span, visible } from '../../model/format';
import { areProof, blindLine, looksAtChange } from '../../model/proof';
import type { State } from '../../model/work';
import { hasEnded } from '../../model/work';
import { Button, Empty, Problem } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Moment, Said } from '../../parts/text';

type CheckSpec = Task['check_specs'][number];
/** The name of a check that has not run yet. */
export const nameOf = (spec: CheckSpec): string => spec.name ?? spec.command ?? spec.kind ?? '';

type Running = components['schemas']['RunningCheck'] | null | undefined;

/** The checks of a task with their output. */
export function Checks({ task }: { task: Task }) {
  const { checks, checking: running } = task;
  const made = checks.length + (running ? 1 : 0);
  const pending = hasEnded(task) ? [] : task.check_specs.slice(made);
  if (made === 0 && pending.length > 0) {
    return (
      <>
        <p className="dim">These checks run when the agent reports that it is done.</p>
        <Pending specs={pending} />
      </>
    );
  }
  if (made === 0 && !hasEnded(task)) {
    return (
      <Empty title="No checks">
        <p>This task has no checks: its result will be unverified.</p>
      </Empty>
    );
  }
  if (checks.length === 0 && !running) {
    return (
      <>
        <Empty title="No checks">
          <p>Without checks, the agent’s report is unverified. A check is a command that must pass.</p>
        </Empty>
        <Again task={task} />
      </>
    );
  }
  return (
    <>
      <Checked checks={checks} running={running} />
      <Pending specs={pending} />
      {hasEnded(task) && <Again task={task} />}
    </>
  );
}

const Pending = ({ specs }: { specs: CheckSpec[] }) =>
  specs.length > 0 && (
    <section className="checked">
      <ul>
        {specs.map((spec, place) => (
          <li key={place}>
            <Glyph state="todo" />
            <Said className="mono break">{nameOf(spec)}</Said>
          </li>
        ))}
      </ul>
    </section>
  );

/** The results of re-run checks, and the button to run them again. */
function Again({ task }: { task: Task }) {
  const check = useAction(() => actions.task(task.id, 'check'));
  const again = task.checked_again;
  const can = task.workspace.kind === 'worktree' && task.check_specs.some((spec) => spec.command);
  return (
    <>
      {again && (
        <>
          <h2>
            Re-run, <Moment at={again.at} />
          </h2>
          <Checked checks={again.checks} />
        </>
      )}
      {can && !task.archived_at && (
        <Button disabled={check.isPending} onClick={() => check.mutate(undefined)}>
          {check.isPending ? 'Running checks…' : 'Re-run checks'}
        </Button>
      )}
      <Problem error={check.error} />
    </>
  );
}

export function Checked({ checks, running }: { checks: CheckResult[]; running?: Running }) {
  const failed = checks.filter((check) => !check.passed).length;
  const commit = checks.at(-1)?.commit;
  const outcome = failed
    ? `${failed} of ${checks.length} failed`
    : `${checks.length} of ${checks.length} passed`;
  const title = running ? 'Running checks' : `Checks: ${outcome}`;
  // Passed checks that prove nothing are not green.
  let state: State = areProof(checks) ? 'ok' : 'said';
  if (running) state = 'run';
  else if (failed) state = 'bad';
  const blind = running || failed ? '' : blindLine(checks);
  return (
    <section className={`checked ${state === 'run' || state === 'said' ? '' : state}`}>
      <header>
        <Glyph state={state} />
        {blind ? `${title}; ${blind}` : title}
        {commit && <span className="end">on {shortCommit(commit)}</span>}
      </header>
      <ul>
        {checks.map((check, place) => (
          <OneCheck key={place} check={check} />
        ))}
        {running && (
          <li>
            <Glyph state="run" />
            <Said className="mono">{running.command || running.name}</Said>
          </li>
        )}
      </ul>
    </section>
  );
}

const MOST_LINES = 40;

function stateOfCheck(check: CheckResult): State {
  if (!check.passed) return 'bad';
  return looksAtChange(check) ? 'ok' : 'said';
}

function OneCheck({ check }: { check: CheckResult }) {
  const lines = check.output.trimEnd().split('\n');
  const shown = lines.slice(-MOST_LINES).join('\n');
  const exit = check.exit_code === null ? '' : `exit ${check.exit_code}, `;
  return (
    <li>
      <Glyph state={stateOfCheck(check)} />
      <Said className="mono break">{check.command ?? check.name}</Said>
      <span className="faint">
        {check.passed ? '' : exit}
        {span(check.duration_s)}
      </span>
      {check.proof && (
        <span className="proof c-you">
          <Said>{check.proof}</Said>
        </span>
      )}
      {check.output.trim() &&
        (check.passed ? (
          <details className="proof">
            <summary className="faint">Show output</summary>
            <Printed text={shown} />
          </details>
        ) : (
          <Printed text={shown} />
        ))}
    </li>
  );
}

const Printed = ({ text }: { text: string }) => (
  // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
  <pre className="term" tabIndex={0}>
    {visible(text)}
  </pre>
);
