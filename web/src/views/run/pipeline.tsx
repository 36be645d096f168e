import { Link } from '@tanstack/react-router';
import type { Run, Step } from '../../api/client';
import { Glyph } from '../../parts/glyph';
import { Elapsed, Said } from '../../parts/text';
import { oneLine } from '../task/line_text';
import { stepState, taskOf } from './step_facts';
import { within } from './within';

interface StepSpec {
  name?: string;
  prompt?: string;
  run?: string;
}

/** Steps in a line: what is done, what is done now, what comes. */
export function Pipeline({ run, steps }: { run: Run; steps: Step[] }) {
  const asked = (Array.isArray(run.spec.steps) ? run.spec.steps : []) as StepSpec[];
  const begun = new Map<number, Step>();
  let number = 0;
  for (const step of steps) {
    if (step.kind === 'progress') number = Number((step.data as { step?: number }).step ?? number);
    else if (number > 0 && (step.kind === 'task' || step.kind === 'check')) begun.set(number, step);
  }
  return (
    <ol className="line">
      {asked.map((step, place) => (
        <OneStep key={place} number={place + 1} asked={step} step={begun.get(place + 1)} run={run} />
      ))}
    </ol>
  );
}

function OneStep(props: { number: number; asked: StepSpec; step: Step | undefined; run: Run }) {
  const { number, asked, step, run } = props;
  const state = step ? stepState(step, run) : within(run, 'todo');
  const title = asked.name ?? oneLine(asked.prompt ?? asked.run ?? '').slice(0, 120);
  return (
    <li className={`panel ${state === 'run' ? 'now' : ''}`}>
      <h2>
        <Glyph state={state} />
        {step?.subject ? (
          <Link className="cut" to="/tasks/$id/{-$tab}" params={{ id: step.subject }}>
            <Said>{`${number}. ${title}`}</Said>
          </Link>
        ) : (
          <Said className="cut">{`${number}. ${title}`}</Said>
        )}
        {step && <Elapsed className="faint" from={step.started_at} to={step.ended_at ?? run.ended_at} />}
      </h2>
      {step && (
        <p className="dim">
          <Said>{oneLine(step.error ?? taskOf(step)?.reason ?? taskOf(step)?.text ?? '')}</Said>
        </p>
      )}
    </li>
  );
}
