import { Link } from '@tanstack/react-router';
import type { Run, Step } from '../../api/client';
import { counted } from '../../model/format';
import { hasEnded, type State } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Elapsed, Said } from '../../parts/text';

interface Part {
  id: string;
  title: string;
  kind: string;
  status: 'open' | 'merged' | 'failed' | 'conflict' | 'blocked';
  reason?: string | null;
  work?: string[];
}

interface Result {
  plan?: Part[];
  checks?: { name: string; passed: boolean }[];
  verdict?: { reached: boolean; reason: string } | null;
}

const STATES: Record<Part['status'], State> = {
  open: 'todo',
  merged: 'merged',
  failed: 'bad',
  conflict: 'bad',
  blocked: 'blocked',
};

/** The plan of a conductor as it is now, and what became of each part. */
export function Conducted({ run, steps }: { run: Run; steps: Step[] }) {
  const result = run.result as Result | null;
  const plan = result?.plan ?? (run.progress.plan as Part[] | undefined) ?? [];
  const merged = plan.filter((part) => part.status === 'merged').length;
  const phase = hasEnded(run) ? '' : `, ${String(run.progress.phase ?? '')}`;
  if (plan.length === 0) {
    return (
      <Empty title={hasEnded(run) ? 'There was no plan' : 'There is no plan yet'}>
        <p>The conductor is asked first. The parts of its plan appear here as soon as it has answered.</p>
      </Empty>
    );
  }
  return (
    <>
      <section className="panel">
        <div className="box">
          <header>
            <h2>Plan</h2>
            <span className="faint">
              {merged} of {counted(plan.length, 'part')} merged
            </span>
            <span className="end faint">
              iteration {String(run.progress.iteration ?? '')}
              {phase}
            </span>
          </header>
        </div>
        <ul className="nest steps">
          {plan.map((part) => (
            <OnePart key={part.id} part={part} steps={steps} ended={hasEnded(run)} />
          ))}
        </ul>
      </section>
      {result?.checks?.map((check) => (
        <div key={check.name} className="note">
          <Glyph state={check.passed ? 'ok' : 'bad'} />
          <Said className="mono">{check.name}</Said>
        </div>
      ))}
      {result?.verdict && (
        <div className="note">
          <Glyph state={result.verdict.reached ? 'ok' : 'bad'} />
          <span>
            The judge: <Said>{result.verdict.reason}</Said>
          </span>
        </div>
      )}
    </>
  );
}

function OnePart({ part, steps, ended }: { part: Part; steps: Step[]; ended: boolean }) {
  const step = steps.findLast((one) => one.kind === 'task' && one.label === part.title);
  const works = part.status === 'open' && !!step && !step.ended_at && !ended;
  const state = works ? 'run' : part.status === 'open' && ended ? 'none' : STATES[part.status];
  const work = part.work?.at(-1) ?? step?.subject;
  const to = work?.startsWith('run_') ? '/runs/$id/{-$tab}' : '/tasks/$id/{-$tab}';
  const title = <Said className="cut">{part.title}</Said>;
  const words = works ? 'at work' : part.status;
  return (
    <li>
      <span className="t">
        <Glyph state={state} label={words} />
        {work ? (
          <Link className="cut" to={to} params={{ id: work }}>
            {title}
          </Link>
        ) : (
          title
        )}
        {part.kind !== 'task' && <span className="chip">{part.kind}</span>}
      </span>
      <span className="faint cut desk">
        <Said>{part.reason ?? ''}</Said>
      </span>
      {step ? <Elapsed className="num" from={step.started_at} to={step.ended_at} /> : <span />}
      <span className="num">{words}</span>
    </li>
  );
}
