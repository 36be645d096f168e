import type { Run } from '../../api/client';
import { hasEnded } from '../../model/work';
import { Chart, Rules } from '../../parts/chart';
import type { Iteration } from './loop';

const HEIGHT = 262;
const [LEFT, RIGHT, TOP, BOTTOM] = [56, 28, 20, 34];
const MOST_NAMED = 16;

/** The number of each iteration, and the best so far as a stepped line. */
export function ScoreChart({ run, iterations }: { run: Run; iterations: Iteration[] }) {
  const target = typeof run.spec.target === 'number' ? run.spec.target : null;
  const most = typeof run.spec.max_iterations === 'number' ? run.spec.max_iterations : 10;
  const scores = iterations.map((one) => one.score).filter((score) => score !== null);
  const values = target === null ? scores : [...scores, target];
  const span = Math.max(...values) - Math.min(...values) || Math.abs(values[0] ?? 1) || 1;
  const falls = run.spec.direction === 'minimize';
  // Below the best there is room for its label, where the line does not cross it.
  const low = Math.min(...values) - span * (falls ? 0.22 : 0.12);
  const high = Math.max(...values) + span * 0.12;
  const last = Math.max(iterations.at(-1)?.number ?? 1, !hasEnded(run) && most > 0 && most <= 40 ? most : 1);
  const y = (score: number) => TOP + ((HEIGHT - TOP - BOTTOM) * (high - score)) / (high - low);
  const floor = HEIGHT - BOTTOM;
  const kept = iterations.filter(
    (one) => one.score !== null && ['start', 'keep', 'pass'].includes(one.verdict),
  );
  const best = kept.at(-1);
  const start = kept.find((one) => one.verdict === 'start');
  const live = iterations.find((one) => one.verdict === 'working' && run.status === 'running');
  const until = live?.number ?? iterations.at(-1)?.number ?? 0;
  const message = `Score by iteration: ${scores[0]} at first, best ${best?.score}${target === null ? '' : `, target ${target}`}`;
  const every = Math.ceil((last + 1) / MOST_NAMED);
  const draw = (width: number) => {
    const x = (number: number) => LEFT + ((width - LEFT - RIGHT) * number) / last;
    const path = kept
      .map((one, n) => `${n ? `H${x(one.number)}V` : `M${x(one.number)} `}${y(one.score ?? 0)}`)
      .join('');
    const beside = best && x(best.number) > width - RIGHT - 40 ? 'end' : 'middle';
    return (
      <>
        <Rules at={ticks(low, high)} y={y} left={LEFT} right={width - RIGHT} />
        {kept.length > 0 && (
          <path className="area" d={`${path}H${x(until)}V${floor}H${x(kept[0]?.number ?? 0)}Z`} />
        )}
        <line className="axis" x1={LEFT} x2={width - RIGHT} y1={floor} y2={floor} />
        {target !== null && (
          <>
            <line className="target" x1={LEFT} x2={width - RIGHT} y1={y(target)} y2={y(target)} />
            <text x={LEFT + 6} y={y(target) - 6}>
              target {target}
            </text>
          </>
        )}
        {kept.length > 0 && <path className="best" d={`${path}H${x(until)}`} />}
        {iterations.map((one) => (
          <Mark
            key={one.number}
            one={one}
            x={x(one.number)}
            y={one.score === null ? floor - 14 : y(one.score)}
          />
        ))}
        {start && start !== best && start.score !== null && (
          <text x={x(0) + 8} y={y(start.score) - 8}>
            start {start.score}
          </text>
        )}
        {best?.score !== null && best && (
          <>
            <circle className="top1" cx={x(best.number)} cy={y(best.score)} r="9" />
            <text
              className="okt"
              x={x(best.number) + (beside === 'end' ? 9 : 0)}
              y={y(best.score) + (falls ? 26 : -16)}
              textAnchor={beside}
            >
              best {best.score}
            </text>
          </>
        )}
        {live && (
          <>
            <line className="live" x1={x(live.number)} x2={x(live.number)} y1={TOP} y2={floor} />
            <text className="got" x={x(live.number) + 8} y={TOP + 12}>
              {live.number}, at work
            </text>
          </>
        )}
        {Array.from({ length: last + 1 }, (_, number) => number)
          .filter((number) => number % every === 0)
          .map((number) => (
            <text key={number} x={x(number)} y={floor + 20} textAnchor="middle">
              {number}
            </text>
          ))}
      </>
    );
  };
  const legend = (
    <span className="legend end">
      <span>
        <svg className="key chart" viewBox="0 0 12 12" aria-hidden="true">
          <circle className="keep" cx="6" cy="6" r="5" />
        </svg>
        kept
      </span>
      <span>
        <svg className="key chart" viewBox="0 0 12 12" aria-hidden="true">
          <circle className="disc" cx="6" cy="6" r="4.5" />
        </svg>
        reverted
      </span>
      <span>
        <svg className="key chart" viewBox="0 0 12 12" aria-hidden="true">
          <path className="badx" d="m2 2 8 8M10 2l-8 8" />
        </svg>
        no score
      </span>
    </span>
  );
  return (
    <Chart
      title={<code>{String(run.spec.eval ?? 'Score')}</code>}
      label={message}
      legend={legend}
      height={HEIGHT}
    >
      {draw}
    </Chart>
  );
}

function Mark({ one, x, y }: { one: Iteration; x: number; y: number }) {
  if (one.verdict === 'working') return null;
  if (one.score === null) {
    return <path className="badx" d={`M${x - 4.5} ${y - 4.5}l9 9M${x + 4.5} ${y - 4.5}l-9 9`} />;
  }
  const kept = one.verdict === 'keep' || one.verdict === 'pass';
  return <circle className={kept ? 'keep' : 'disc'} cx={x} cy={y} r={kept ? 5 : 4.5} />;
}

/** Three to six round numbers between two. */
function ticks(low: number, high: number): number[] {
  const rough = (high - low) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? power;
  const found: number[] = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) {
    found.push(Number(tick.toPrecision(6)));
  }
  return found;
}
