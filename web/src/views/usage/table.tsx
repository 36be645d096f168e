import type { Usage, UsageSum } from '../../api/client';
import { type UsageBy, useOne } from '../../api/queries';
import { percent, shortId } from '../../model/format';
import { cachedShare, price, priceOfSum, tokens } from '../../model/price';
import { Empty, share } from '../../parts/controls';
import { Said } from '../../parts/text';
import { WorkTo } from '../work_link';
import { daysFrom } from './day_chart';

/** The cost per verified attempt, including unverified attempts. */
export function perVerified(sum: UsageSum): string {
  if (sum.verified === 0) return '–';
  const { usd, unknown } = priceOfSum(sum);
  return price({ usd: usd === null ? null : usd / sum.verified, unknown });
}

type Row = Usage['rows'][number];

interface Props {
  by: UsageBy;
  rows: Row[];
  total: UsageSum;
  /** The sums by day, for the small bars; null if the rows have no such bars. */
  days: Row[] | null;
}

export function Table({ by, rows, total, days }: Props) {
  const spans = daysFrom(days?.map((row) => row.across ?? '').sort()[0], 30).slice(-30);

  if (rows.length === 0) return <Empty title="No usage" />;
  return (
    <div className="panel">
      <table className="table cardy sums">
        <thead>
          <tr>
            <th>
              <span className="vh">Name</span>
            </th>
            {days && <th className="byday">by day</th>}
            <th className="num">Attempts</th>
            <th className="num">In</th>
            <th className="num rare">cached</th>
            <th className="num">Out</th>
            <th className="num">Verified</th>
            <th className="num">per verified</th>
            <th className="num">Cost</th>
            <th className="part">
              <span className="vh">Share of the cost</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={`${row.key} ${row.across}`}>
              <td className="strong full">
                <Name by={by} row={row} />
                {row.across && (
                  <span className="dim sep">
                    <Said>{row.across}</Said>
                  </span>
                )}
              </td>
              {days && (
                <td className="desk byday">
                  <Bars days={spans} rows={days.filter((one) => one.key === row.key)} />
                </td>
              )}
              <td className="num">{row.attempts}</td>
              <td className="num desk">{tokens(row.input_tokens, row)}</td>
              <td className="num faint desk rare">
                {cachedShare(row.cached_tokens, row.input_tokens) || '–'}
              </td>
              <td className="num desk">{tokens(row.output_tokens, row)}</td>
              <td className="num desk">{percent(row.verified, row.attempts)}</td>
              <td className="num desk">{perVerified(row)}</td>
              <td className="num strong">{price(priceOfSum(row))}</td>
              <td className="desk part">
                <div className="bar" style={share((row.cost_usd ?? 0) / (total.cost_usd || 1))}>
                  <i />
                </div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const NOTHING: Partial<Record<UsageBy, string>> = {
  model: 'unknown model',
  run: 'single tasks',
  template: 'without a template',
  project: 'without a project',
};

function Name({ by, row }: { by: UsageBy; row: Row }) {
  if (row.key === null) return <span className="dim">{NOTHING[by] ?? 'none'}</span>;
  if (by === 'run' || by === 'task') return <Titled id={row.key} title={row.title} />;
  return <Said>{row.key}</Said>;
}

/** A task or run by its title, to go there. */
export const Titled = ({ id, title }: { id: string; title?: string | null }) => (
  <WorkTo id={id}>
    <Said>{useOne(id).data?.title ?? title ?? shortId(id)}</Said>
  </WorkTo>
);

const [WIDE, HIGH] = [120, 18];

/** A small bar for each day. */
function Bars({ days, rows }: { days: string[]; rows: Row[] }) {
  const priced = rows.some((row) => row.cost_usd);
  const value = (row?: Row) => (priced ? row?.cost_usd : row?.attempts) ?? 0;
  const most = Math.max(...rows.map(value), Number.MIN_VALUE);
  const slot = WIDE / days.length;
  return (
    <svg className="bars" width={WIDE} height={HIGH} aria-hidden="true">
      {days.map((day, place) => {
        const high = (HIGH * value(rows.find((row) => row.across === day))) / most;
        return <rect key={day} x={place * slot} y={HIGH - high} width={slot - 1} height={high} rx={1} />;
      })}
    </svg>
  );
}
