import { Link } from '@tanstack/react-router';
import type { Run } from '../../api/client';
import { counted, inline } from '../../model/format';
import { hasEnded, type State } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Said } from '../../parts/text';
import { oneLine } from '../task/line_text';
import { within, wordsFor } from './within';

interface Feature {
  id: number | string;
  name: string;
  track: string;
  status: 'open' | 'verifying' | 'passed' | 'failed';
  phase: string;
  branch: string | null;
  tasks: string[];
  verifications: number;
  report: { step: number; passed: boolean; evidence: string }[];
  reason: string | null;
}

interface Result {
  features?: Feature[];
  paused?: Record<string, string>;
}

const featuresOf = (run: Run): Feature[] =>
  (run.result as Result | null)?.features ?? (run.progress.features as Feature[] | undefined) ?? [];

function stateOf(feature: Feature, run: Run): State {
  if (feature.status === 'passed') return 'merged';
  if (feature.status === 'failed') return 'bad';
  if (feature.reason) return within(run, 'blocked');
  return within(run, feature.phase === 'waiting' || feature.phase === 'open' ? 'todo' : 'run');
}

/** The state of a feature in a line. */
function about(feature: Feature, state: State): string {
  if (feature.reason) return oneLine(inline(feature.reason));
  if (feature.status === 'passed')
    return feature.verifications > 1 ? `passed the ${ordinal(feature.verifications)} time` : 'passed';
  return state === 'run' || state === 'todo' ? feature.phase : wordsFor(state);
}

const ordinal = (number: number): string => ['', 'first', 'second', 'third'][number] ?? `${number}th`;

/** A lane for each track, with its features in their order. */
export function Lanes({ run }: { run: Run }) {
  const features = featuresOf(run);
  const paused = (run.result as Result | null)?.paused ?? {};
  const tracks = Object.keys((run.spec.tracks as Record<string, string> | undefined) ?? { all: '' });
  if (features.length === 0) {
    const none = run.status === 'completed' ? 'No feature was open' : 'No feature was started';
    return <Empty title={hasEnded(run) ? none : 'Features not read yet'} />;
  }
  return (
    <ul className="candidates">
      {tracks.map((track) => {
        const own = features.filter((feature) => feature.track === track);
        const passed = own.filter(({ status }) => status === 'passed').length;
        return (
          <li key={track} className={`panel ${own.length > 0 && passed === own.length ? 'won' : ''}`}>
            <h2>
              {track}
              {track in paused && <span className="c-bad">paused</span>}
              <span className="faint">
                {passed} of {counted(own.length, 'feature')}
              </span>
            </h2>
            <ol className="lane">
              {own.map((feature) => (
                <Row key={feature.id} feature={feature} run={run} />
              ))}
            </ol>
          </li>
        );
      })}
    </ul>
  );
}

function Row({ feature, run }: { feature: Feature; run: Run }) {
  const task = feature.tasks.at(-1);
  const state = stateOf(feature, run);
  return (
    <li>
      <Glyph state={state} />
      {task ? (
        <Link to="/tasks/$id/{-$tab}" params={{ id: task }}>
          {feature.name}
        </Link>
      ) : (
        <span>{feature.name}</span>
      )}
      <p className={state === 'bad' ? 'c-bad small' : 'faint small'}>
        <Said>{about(feature, state)}</Said>
        {feature.branch && feature.status !== 'passed' && (
          <>
            {' '}
            <code>{feature.branch}</code>
          </>
        )}
      </p>
    </li>
  );
}
