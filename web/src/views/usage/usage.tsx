import { useState } from 'react';
import type { Usage, UsageSum } from '../../api/client';
import { type UsageBy, useAgents, useUsage } from '../../api/queries';
import { counted, money, percent, short, shortId } from '../../model/format';
import { Choices, Empty, Loading, Problem, share } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Moment, Said } from '../../parts/text';
import { View as Frame } from '../../shell/layout';
import { useScope } from '../../shell/preferences';
import { DayChart } from './day_chart';

const SPANS = { today: 0, week: 6, month: 29, all: null } as const;
type Span = keyof typeof SPANS;

function sinceOf(span: Span): string | undefined {
  const days = SPANS[span];
  if (days === null) return undefined;
  const begun = new Date();
  begun.setHours(0, 0, 0, 0);
  begun.setDate(begun.getDate() - days);
  return begun.toISOString();
}

/** How many attempts cost nobody knows how much. */
const unpriced = (sum: UsageSum): number => sum.unknown_cost + sum.unreported;

/** A sum in dollars, at least that much when a price is not known. */
function cost(sum: UsageSum): string {
  if (sum.cost_usd === null) return sum.attempts > 0 ? 'unknown' : '–';
  return `${unpriced(sum) > 0 ? '≥ ' : ''}${money(sum.cost_usd)}`;
}

/** What one result cost that was verified, with all that led to none. */
function perResult(sum: UsageSum): string {
  if (sum.verified === 0) return '–';
  return cost({ ...sum, cost_usd: sum.cost_usd == null ? null : sum.cost_usd / sum.verified });
}

export function View() {
  const [span, setSpan] = useState<Span>('month');
  const [by, setBy] = useState<Exclude<UsageBy, 'day'>>('agent');
  const [across, setAcross] = useState<UsageBy | 'nothing'>('nothing');
  const [project] = useScope();
  const since = sinceOf(span);
  const days = useUsage('day', since, project);
  const rows = useUsage(by, since, project, across === 'nothing' ? undefined : across);
  const total = days.data?.total;
  return (
    <Frame title="Usage">
      <div className="page wide stack">
        <div className="tbar">
          <Choices
            label="Since"
            value={span}
            choose={setSpan}
            of={[
              { value: 'today', label: 'Today' },
              { value: 'week', label: '7 days' },
              { value: 'month', label: '30 days' },
              { value: 'all', label: 'All' },
            ]}
          />
        </div>
        <Problem error={days.error ?? rows.error} />
        {days.isPending && <Loading />}
        {total && <Figures total={total} />}
        {days.data && days.data.rows.length > 0 && <DayChart rows={days.data.rows} />}
        <section className="section">
          <header className="wraps">
            <h2>By</h2>
            <Choices
              label="By"
              value={by}
              choose={setBy}
              of={[
                { value: 'agent', label: 'Agent' },
                { value: 'model', label: 'Model' },
                { value: 'project', label: 'Project' },
                { value: 'run', label: 'Run' },
                { value: 'task', label: 'Task' },
              ]}
            />
            <span className="dim">split by</span>
            <Choices
              label="Split by"
              value={across}
              choose={setAcross}
              of={[
                { value: 'nothing', label: 'Nothing' },
                { value: 'day', label: 'Day' },
                { value: 'outcome', label: 'Outcome' },
                { value: 'model', label: 'Model' },
                { value: 'project', label: 'Project' },
              ]}
            />
          </header>
          {rows.data && <Table rows={rows.data.rows} total={rows.data.total} />}
        </section>
        <Accounts />
      </div>
    </Frame>
  );
}

function Figures({ total }: { total: UsageSum }) {
  const figures: [string, string, string][] = [
    [
      'Cost',
      cost(total),
      unpriced(total) > 0
        ? `${counted(unpriced(total), 'attempt')} of unknown price`
        : total.attempts > 0
          ? 'every price is known'
          : '',
    ],
    ['Per verified result', perResult(total), counted(total.verified, 'result')],
    ['Attempts', String(total.attempts), total.unreported > 0 ? `${total.unreported} told nothing` : ''],
    ['Tokens in', short(total.input_tokens), `${percent(total.cached_tokens, total.input_tokens)} cached`],
    ['Tokens out', short(total.output_tokens), ''],
  ];
  return (
    <div className="figs panel">
      {figures.map(([name, value, about]) => (
        <div key={name}>
          <div className="k">{name}</div>
          <div className="v">{value}</div>
          <div className="d">{about}</div>
        </div>
      ))}
    </div>
  );
}

type Row = Usage['rows'][number];

function Table({ rows, total }: { rows: Row[]; total: UsageSum }) {
  if (rows.length === 0) return <Empty title="Nothing was used" />;
  return (
    <div className="panel">
      <table className="table cardy">
        <thead>
          <tr>
            <th> </th>
            <th className="num">Attempts</th>
            <th className="num">In</th>
            <th className="num">cached</th>
            <th className="num">Out</th>
            <th className="num">Verified</th>
            <th className="num">per result</th>
            <th className="num">Cost</th>
            <th> </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={`${row.key} ${row.across}`}>
              <td className="strong full">
                <Said>{row.title ?? (row.key?.includes('_0') ? shortId(row.key) : row.key) ?? 'none'}</Said>
                {row.across && (
                  <span className="dim sep">
                    <Said>{row.across}</Said>
                  </span>
                )}
              </td>
              <td className="num">{row.attempts}</td>
              <td className="num desk">{short(row.input_tokens)}</td>
              <td className="num faint desk">{percent(row.cached_tokens, row.input_tokens)}</td>
              <td className="num desk">{short(row.output_tokens)}</td>
              <td className="num desk">{percent(row.verified, row.attempts)}</td>
              <td className="num desk">{perResult(row)}</td>
              <td className="num strong">{cost(row)}</td>
              <td className="desk">
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

function Accounts() {
  const agents = useAgents().data ?? [];
  const paused = agents.flatMap((agent) => [
    ...(agent.paused_until
      ? [{ agent: agent.name, model: '', until: agent.paused_until, reason: agent.paused_reason ?? 'paused' }]
      : []),
    ...agent.paused_models.map((one) => ({ agent: agent.name, ...one })),
  ]);
  if (paused.length === 0) return null;
  return (
    <section className="section">
      <header>
        <h2>Accounts</h2>
      </header>
      <div className="panel">
        <table className="table">
          <tbody>
            {paused.map(({ agent, model, until, reason }) => (
              <tr key={`${agent} ${model}`}>
                <td className="strong">
                  {agent} {model && <span className="dim">{model}</span>}
                </td>
                <td>
                  <span className="tag">
                    <Glyph state="limit" />
                    <Said>{reason}</Said>
                  </span>
                </td>
                <td className="num">
                  until <Moment at={until} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
