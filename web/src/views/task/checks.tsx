import type { CheckResult, Task } from '../../api/client';
import type { components } from '../../api/schema';
import { shortCommit, span, visible } from '../../model/format';
import { hasEnded } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Said } from '../../parts/text';

type Running = components['schemas']['RunningCheck'] | null | undefined;

/** What Kapelle itself ran, and what that printed. */
export function Checks({ task }: { task: Task }) {
  const { checks, checking: running } = task;
  if (checks.length === 0 && !running && !hasEnded(task)) {
    return (
      <Empty title="Not checked yet">
        <p>Checks, if it has any, are made when its agent says that it is done.</p>
      </Empty>
    );
  }
  if (checks.length === 0 && !running) {
    return (
      <Empty title="Nothing was checked">
        <p>Without a check, what an agent says is all that is known. A check is a command that must pass.</p>
      </Empty>
    );
  }
  return <Checked checks={checks} running={running} />;
}

export function Checked({ checks, running }: { checks: CheckResult[]; running?: Running }) {
  const failed = checks.filter((check) => !check.passed).length;
  const commit = checks.at(-1)?.commit;
  const title = running
    ? 'Kapelle checks'
    : failed
      ? `Kapelle checked: ${failed} of ${checks.length} failed`
      : `Kapelle checked: ${checks.length} of ${checks.length} passed`;
  return (
    <section className={`checked ${running ? '' : failed ? 'bad' : 'ok'}`}>
      <header>
        <Glyph state={running ? 'run' : failed ? 'bad' : 'ok'} />
        {title}
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

function OneCheck({ check }: { check: CheckResult }) {
  const lines = check.output.trimEnd().split('\n');
  const shown = lines.slice(-MOST_LINES).join('\n');
  const exit = check.exit_code === null ? '' : `exit ${check.exit_code}, `;
  return (
    <li>
      <Glyph state={check.passed ? (check.proved === false ? 'said' : 'ok') : 'bad'} />
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
            <summary className="faint">What it printed</summary>
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
