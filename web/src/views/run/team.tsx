import type { ReactNode } from 'react';
import type { CheckResult, Run, Step } from '../../api/client';
import { counted } from '../../model/format';
import type { State } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph, Legend } from '../../parts/glyph';
import { Icon } from '../../parts/icon';
import { Said } from '../../parts/text';
import { Graph } from '../graph';
import { afterwards, commandsOf, type Phase, Phases } from './phases';
import { criteriaOf, nodeOf, type Part, phaseOf, planned, planOf } from './plan';
import { meanings, within } from './within';

const PHASES = ['intake', 'plan', 'work', 'verify', 'review'];

/** The phases of a team. */
export function TeamPhases({ run, steps }: { run: Run; steps: Step[] }) {
  const parts = planOf(run, steps, planned(steps).at(-1) ?? 0);
  const merged = parts.filter((part) => part.state === 'merged').length;
  const working = parts.filter((part) => part.state === 'run').length;
  const criteria = criteriaOf(run).length;
  const commands = commandsOf(run.spec.verify);
  const phases: Phase[] = [
    ['intake', criteria ? counted(criteria, 'criterion', 'criteria') : ''],
    ['plan', parts.length > 0 ? counted(parts.length, 'part') : ''],
    [
      'work',
      parts.length > 0 ? `${merged} of ${parts.length} merged${working ? `, ${working} at work` : ''}` : '',
      afterwards(run, merged === parts.length),
    ],
    ['verify', commands.join(', ') || 'no command', commands.length > 0 ? 'ok' : 'none'],
    ['review', '4 review questions'],
  ];
  return <Phases run={run} phases={phases} at={placeOf(run)} />;
}

/** The current phase; between iterations and at the end, the last one of the last iteration. */
function placeOf(run: Run): number {
  const at = PHASES.indexOf(phaseOf(run));
  if (at >= 0) return at;
  const last = toldOf(run).at(-1);
  if (last?.review) return refusedBy(last.review).length > 0 ? 4 : PHASES.length;
  if (last) return last.checks.length ? 3 : 2;
  return run.progress.iteration ? 1 : 0;
}

const toldOf = (run: Run): Told[] => (run.result as { iterations?: Told[] } | null)?.iterations ?? [];

interface Told {
  number: number;
  review: Review | null;
  checks: CheckResult[];
  problem: string | null;
}

interface Review {
  quality: boolean;
  consistency: boolean;
  goal_aligned: boolean;
  goal_complete: boolean;
  feedback: string;
}

const QUESTIONS: [keyof Review, string, string][] = [
  ['quality', 'Quality', 'is the work good?'],
  ['consistency', 'Consistency', 'do the parts fit together?'],
  ['goal_aligned', 'Goal aligned', 'does it serve the goal and nothing else?'],
  ['goal_complete', 'Goal complete', 'is the goal reached?'],
];

const refusedBy = (review: Review): string[] =>
  QUESTIONS.filter(([key]) => review[key] === false).map(([, name]) => name.toLowerCase());

export function Team({ run, steps }: { run: Run; steps: Step[] }) {
  const numbers = planned(steps);
  const told = toldOf(run);
  const last = numbers.at(-1);
  if (last === undefined) {
    return (
      <Empty title="No plan yet">
        <p>The planner makes the plan first. Its parts appear here.</p>
      </Empty>
    );
  }
  const parts = planOf(run, steps, last);
  return (
    <section className="panel">
      <div className="box">
        <header>
          <h2>Plan of iteration {last}</h2>
          <Legend of={meanings(parts)} />
        </header>
        <Plan parts={parts} gates={<Gates run={run} />} />
      </div>
      {told.toReversed().map((iteration) => (
        <Verdict
          key={iteration.number}
          iteration={iteration}
          parts={planOf(run, steps, iteration.number)}
          run={run}
        />
      ))}
    </section>
  );
}

/** The parts by layers, with a line from each to what depends on it, and the gates at the end. */
function Plan({ parts, gates }: { parts: Part[]; gates: ReactNode }) {
  const depended = new Set(parts.flatMap((part) => part.dependsOn));
  const ends = parts.filter((part) => !depended.has(part.id)).map((part) => part.id);
  const end = { title: '', about: '', state: 'todo' as const, after: ends, as: gates, ...GATES };
  return <Graph label="The plan" widest={200} nodes={[...parts.map(nodeOf), end]} />;
}

const GATES = { id: 'gates', width: 132, height: 104 };

function Gates({ run }: { run: Run }) {
  const at = placeOf(run);
  const commands = commandsOf(run.spec.verify).join(', ');
  const state = (place: number): State => {
    if (run.status === 'completed' || at > place) return place === 3 && !commands ? 'none' : 'ok';
    if (at === place && run.status === 'failed') return 'bad';
    return within(run, at === place ? 'run' : 'todo');
  };
  return (
    <>
      <div className="gate">
        <span className="t">
          <Glyph state={state(3)} />
          Gate: verify
        </span>
        <code className="cut block">{commands || 'nothing'}</code>
      </div>
      <div className="gate">
        <span className="t">
          <Glyph state={state(4)} />
          Gate: review
        </span>
        4 review questions
      </div>
    </>
  );
}

function Verdict({ iteration, parts, run }: { iteration: Told; parts: Part[]; run: Run }) {
  const { review, checks } = iteration;
  const no = review && refusedBy(review);
  const merged = parts.filter((part) => part.state === 'merged').length;
  const all = merged === parts.length;
  const good = all && no?.length === 0 && checks.every((check) => check.passed);
  const failed = parts.some((part) => part.state === 'bad');
  // Nobody judged the one in which the run was ended.
  const stopped = run.status === 'cancelled' && !review && !iteration.problem && !failed;
  let state: State = good ? 'ok' : 'bad';
  if (stopped) state = 'cancelled';
  let partsState: State = failed ? 'bad' : 'none';
  if (all) partsState = 'merged';
  const refused = no?.length ? `the reviewer objects to ${no.join(', ')}` : null;
  const short = no && !all ? `${parts.length - merged} of ${counted(parts.length, 'part')} not merged` : null;
  const lacks = iteration.problem ?? refused ?? short ?? (stopped ? 'stopped' : 'not done');
  return (
    <details className="fold" open={!good}>
      <summary>
        <Icon name="right" className="chev" />
        <Glyph state={state} label={stopped ? 'stopped' : undefined} />
        <b>Iteration {iteration.number}</b>
        <span className="dim cut">
          <Said>{good ? 'all 4 review questions: yes' : lacks}</Said>
        </span>
      </summary>
      <div className="in">
        <p className="proofs">
          <span>
            <Glyph state={partsState} label={all || failed ? undefined : 'not all'} />
            {merged} of {counted(parts.length, 'part')} merged
          </span>
          {checks.map((check) => (
            <span key={check.name}>
              <Glyph state={check.passed ? 'ok' : 'bad'} />
              <code>{check.name}</code>
            </span>
          ))}
        </p>
        {review && (
          <>
            <ul className="verdicts mt-3">
              {QUESTIONS.map(([key, name, asks]) => (
                <li key={key}>
                  <Glyph state={review[key] ? 'ok' : 'bad'} />
                  <div>
                    <b>{name}</b>
                    <div className="q">{asks}</div>
                  </div>
                </li>
              ))}
            </ul>
            {review.feedback && (
              <p className="dim mt-3">
                “<Said>{review.feedback}</Said>”
              </p>
            )}
          </>
        )}
      </div>
    </details>
  );
}
