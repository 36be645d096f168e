import { Link } from '@tanstack/react-router';
import type { Run, Step } from '../../api/client';
import { capital, sentence } from '../../model/format';
import { hasEnded, stateOf } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Elapsed, Said } from '../../parts/text';
import { oneLine } from '../task/line_text';
import { objectIn } from './plan';
import { stepState, taskOf } from './step_facts';
import { wordsFor } from './within';

interface Stance {
  verdict?: 'agree' | 'disagree' | 'partial';
  position?: string;
  reasons?: string[];
}

const SIDES: Record<string, string> = { side_one: 'Side one', side_two: 'Side two' };

const sideOf = (step: Step): string | undefined => SIDES[step.role ?? ''];

/** The rounds as their steps tell them: both sides of a round are branches of one step. */
function roundsOf(steps: Step[]): Map<string, Step[]> {
  const found = new Map<string, Step[]>();
  for (const step of steps) {
    const side = sideOf(step);
    if (!side) continue;
    const at = step.position.split('.')[0] ?? '';
    const others = (found.get(at) ?? []).filter((one) => one.role !== step.role);
    // The one side before the other, as it happens, in the order of their names.
    found.set(
      at,
      [...others, step].sort((a, b) => (sideOf(a) ?? '').localeCompare(sideOf(b) ?? '')),
    );
  }
  return found;
}

/** The rounds, both sides beside each other, and what followed. */
export function Debate({ run, steps }: { run: Run; steps: Step[] }) {
  const rounds = [...roundsOf(steps)];
  const after = steps.filter((step) => step.kind === 'task' && !sideOf(step));
  if (rounds.length === 0) return <Empty title="Nobody has said anything yet" />;
  return (
    <>
      {rounds.map(([at, sides]) => (
        <section key={at}>
          <h2 className="faint mb-2">Round {sides[0]?.cycle}</h2>
          <ul className="candidates">
            {sides.map((step) => (
              <li key={step.position} className="panel">
                <OneSide run={run} step={step} />
              </li>
            ))}
          </ul>
        </section>
      ))}
      {after.length > 0 && (
        <section className="panel">
          <ul className="nest steps">
            {after.map((step) => (
              <li key={step.position}>
                <span className="t">
                  <Glyph state={stepState(step, run)} />
                  <Link className="cut" to="/tasks/$id/{-$tab}" params={{ id: step.subject ?? '' }}>
                    {step.label}
                  </Link>
                </span>
                <span className="faint cut desk">
                  <Said>{oneLine(taskOf(step)?.text ?? '')}</Said>
                </span>
                <Elapsed className="num" from={step.started_at} to={step.ended_at ?? run.ended_at} />
                <span className="num desk">{taskOf(step)?.agent ?? wordsFor(stepState(step, run))}</span>
              </li>
            ))}
          </ul>
        </section>
      )}
      {run.reason && hasEnded(run) && (
        <div className="note">
          <Glyph state={stateOf(run)} />
          <Said>{sentence(capital(run.reason))}</Said>
        </div>
      )}
    </>
  );
}

function OneSide({ run, step }: { run: Run; step: Step }) {
  const facts = taskOf(step);
  const stance = objectIn<Stance>(facts?.text ?? '');
  return (
    <>
      <h3>
        <Glyph state={stepState(step, run)} />
        <Link to="/tasks/$id/{-$tab}" params={{ id: step.subject ?? '' }}>
          {facts?.agent ?? sideOf(step)}
        </Link>
        {stance?.verdict && <span>{stance.verdict}</span>}
        <Elapsed className="faint" from={step.started_at} to={step.ended_at ?? run.ended_at} />
      </h3>
      <p>
        <Said>{stance?.position ?? facts?.reason ?? wordsFor(stepState(step, run))}</Said>
      </p>
      <ul className="dim">
        {stance?.reasons?.map((reason) => (
          <li key={reason}>
            <Said>{reason}</Said>
          </li>
        ))}
      </ul>
    </>
  );
}
