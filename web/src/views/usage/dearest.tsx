import { useUsage } from '../../api/queries';
import { type Price, price, priceOfSum } from '../../model/price';
import { useScope } from '../../shell/preferences';
import { Titled } from './table';

const [DAYS, MOST] = [7, 5];

function weekAgo(): string {
  const begun = new Date();
  begun.setHours(0, 0, 0, 0);
  begun.setDate(begun.getDate() - DAYS + 1);
  return begun.toISOString();
}

/** The runs, and the tasks on their own, that cost most this week. */
export function Dearest() {
  const [project] = useScope();
  const rows = useUsage('task', weekAgo(), project, 'run').data?.rows ?? [];
  const sums = new Map<string, Price & { usd: number }>();
  for (const row of rows) {
    const id = row.across ?? row.key ?? '';
    const [before, more] = [sums.get(id), priceOfSum(row)];
    const usd = (before?.usd ?? 0) + (more.usd ?? 0);
    sums.set(id, { usd, unknown: (before?.unknown ?? 0) + more.unknown });
  }
  const dearest = [...sums].filter(([, cost]) => cost.usd > 0).sort(([, a], [, b]) => b.usd - a.usd);
  if (dearest.length === 0) return null;
  return (
    <section className="section">
      <header>
        <h2>Most expensive this week</h2>
      </header>
      <div className="panel">
        <table className="table">
          <tbody>
            {dearest.slice(0, MOST).map(([id, cost]) => (
              <tr key={id}>
                <td>
                  <Titled id={id} title={rows.find((row) => row.key === id)?.title} />
                </td>
                <td className="num strong">{price(cost)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
