import { Link } from '@tanstack/react-router';
import type { Run, Step } from '../../api/client';
import { capital } from '../../model/format';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Elapsed, Moment, Said } from '../../parts/text';
import { Checked } from '../task/checks';
import { oneLine } from '../task/line_text';
import { checksOf, failuresOf, stepState, taskOf, telling } from './step_facts';

/** The steps of a run, in order. */
export function Steps({ run, steps }: { run: Run; steps: Step[] }) {
  const shown = telling(steps);
  if (shown.length === 0) return <Empty title="No steps yet" />;
  return (
    <ul className="nest panel steps">
      {shown.map((step) => (
        <li key={step.position}>
          <span className="t">
            <Glyph state={stepState(step, run)} />
            <span className="dim">{capital(step.kind.replaceAll('_', ' '))}</span>
            <Name step={step} />
          </span>
          <span className="faint cut desk">
            <Said>{cameTo(step)}</Said>
          </span>
          <Elapsed className="num" from={step.started_at} to={step.ended_at ?? run.ended_at} />
          <span className="num desk">
            <Moment at={step.started_at} />
          </span>
          {failuresOf(step) && (
            <div className="whole">
              <Checked checks={checksOf(step)} />
            </div>
          )}
        </li>
      ))}
    </ul>
  );
}

function Name({ step }: { step: Step }) {
  const label = <Said className="cut">{step.label}</Said>;
  if (!step.subject) return label;
  const to = step.subject.startsWith('run_') ? '/runs/$id/{-$tab}' : '/tasks/$id/{-$tab}';
  return (
    <Link className="cut" to={to} params={{ id: step.subject }}>
      {label}
    </Link>
  );
}

function cameTo(step: Step): string {
  if (step.error) return step.error;
  if (step.kind === 'check') return failuresOf(step) || 'passed';
  if (step.kind === 'task' || step.kind === 'run')
    return oneLine(taskOf(step)?.reason ?? taskOf(step)?.text ?? '');
  if (step.kind === 'score') {
    const score = step.result as { value: number | null; problem: string | null } | null;
    return score?.problem ?? String(score?.value ?? '');
  }
  if (step.kind === 'merge') return (step.result as { problem?: string | null } | null)?.problem ?? '';
  return typeof step.result === 'string' ? oneLine(step.result) : '';
}
