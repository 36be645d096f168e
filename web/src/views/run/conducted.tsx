import type { Run, Step } from '../../api/client';
import { counted } from '../../model/format';
import { hasEnded, type State } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph, Legend } from '../../parts/glyph';
import { Said } from '../../parts/text';
import { Graph, type Node } from '../graph';
import { commandsOf, type Phase, Phases } from './phases';
import { phaseOf } from './plan';

interface Part {
  id: string;
  title: string;
  kind: string;
  status: 'open' | 'merged' | 'failed' | 'conflict' | 'blocked';
  depends_on?: string[];
  reason?: string | null;
  work?: string[];
}

interface Result {
  plan?: Part[];
  checks?: { name: string; passed: boolean }[];
  verdict?: { reached: boolean; reason: string } | null;
}

const PHASES = ['conduct', 'work', 'verify'];

const STATES: Record<Part['status'], State> = {
  open: 'todo',
  merged: 'merged',
  failed: 'bad',
  conflict: 'bad',
  blocked: 'blocked',
};

const planOf = (run: Run): Part[] =>
  (run.result as Result | null)?.plan ?? (run.progress.plan as Part[] | undefined) ?? [];

/** The steps that work on each part now: the parts that were open are branches of the run, in that order. */
function openSteps(steps: Step[]): Map<string, Step> {
  const isBegin = (step: Step) =>
    step.kind === 'progress' &&
    !step.position.includes('.') &&
    (step.data as { phase?: string }).phase === 'work';
  const at = steps.findLastIndex(isBegin);
  const plan = (steps[at]?.data as { plan?: Part[] } | undefined)?.plan ?? [];
  const found = new Map<string, Step>();
  for (const [place, part] of plan.filter(({ status }) => status === 'open').entries()) {
    const own = steps
      .slice(at + 1)
      .findLast(
        (step) =>
          (step.kind === 'task' || step.kind === 'run') && step.position.split('.')[1] === String(place + 1),
      );
    if (own) found.set(part.id, own);
  }
  return found;
}

function nodeOf(part: Part, step: Step | undefined, run: Run): Node {
  const works = part.status === 'open' && !!step && !step.ended_at && !hasEnded(run);
  const state = works ? 'run' : part.status === 'open' && hasEnded(run) ? 'none' : STATES[part.status];
  const before = part.depends_on ?? [];
  const words = works ? 'at work' : part.status === 'open' ? 'to come' : part.status;
  const about = part.status === 'merged' ? words : (part.reason ?? words);
  return {
    id: part.id,
    title: part.title,
    about: part.kind === 'task' ? about : `${part.kind}, ${about}`,
    state,
    after: before,
    work: (works ? step?.subject : null) ?? part.work?.at(-1) ?? step?.subject,
  };
}

export function ConductedPhases({ run }: { run: Run }) {
  const plan = planOf(run);
  const merged = plan.filter((part) => part.status === 'merged').length;
  const phase = phaseOf(run);
  const phases: Phase[] = [
    ['conduct', `iteration ${run.progress.iteration ?? 1}`],
    ['work', plan.length ? `${merged} of ${counted(plan.length, 'part')} merged` : ''],
    ['verify', commandsOf(run.spec.until).join(', ') || 'a judge'],
  ];
  const at = PHASES.indexOf(phase);
  return <Phases run={run} phases={phases} at={at < 0 ? PHASES.length - 1 : at} />;
}

/** The plan of a conductor as it is now, and what became of each part. */
export function Conducted({ run, steps }: { run: Run; steps: Step[] }) {
  const result = run.result as Result | null;
  const plan = planOf(run);
  if (plan.length === 0) {
    return (
      <Empty title={hasEnded(run) ? 'There was no plan' : 'There is no plan yet'}>
        <p>The conductor is asked first. The parts of its plan appear here as soon as it has answered.</p>
      </Empty>
    );
  }
  const open = openSteps(steps);
  const failed = plan.filter((part) => part.status === 'failed' || part.status === 'conflict');
  const lack = run.progress.lack;
  return (
    <>
      <section className="panel box">
        <header>
          <h2>Plan</h2>
          <span className="faint">as the conductor has it now</span>
          <Legend of={{ merged: 'merged', run: 'at work', blocked: 'waits' }} />
        </header>
        <Graph
          label="The plan"
          widest={200}
          nodes={plan.map((part) => nodeOf(part, open.get(part.id), run))}
        />
      </section>
      {failed.map((part) => (
        <div key={part.id} className="note">
          <Glyph state="bad" />
          <span>
            <b>
              <Said>{part.title}</Said>
            </b>{' '}
            <Said>{part.reason ?? part.status}</Said>
          </span>
        </div>
      ))}
      {typeof lack === 'string' && lack && !hasEnded(run) && (
        <div className="note">
          <Glyph state="todo" />
          <span>
            Still lacking: <Said>{lack}</Said>
          </span>
        </div>
      )}
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
