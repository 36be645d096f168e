import { type Attempt, isRun, type UsageSum, type Work } from '../api/client';
import { money, percent, short } from './format';

/** A sum of the known prices, null if there is none, and the number of unknown ones. */
export interface Price {
  usd: number | null;
  unknown: number;
}

/** A price as text; ≥ marks a price of which a part is unknown. */
export function price({ usd, unknown }: Price): string {
  if (usd === null) return unknown > 0 ? 'unknown' : '–';
  return `${unknown > 0 ? '≥ ' : ''}${money(usd)}`;
}

export const priceOfSum = (sum: UsageSum): Price => ({
  usd: sum.cost_usd ?? null,
  unknown: sum.unknown_cost + sum.unreported,
});

/** A sum of tokens as text; ≥ marks a sum that lacks attempts without a report. */
export function tokens(count: number, sum: UsageSum): string {
  if (sum.unreported === 0) return short(count);
  return sum.input_tokens + sum.output_tokens > 0 ? `≥ ${short(count)}` : 'unknown';
}

/** The cached share of input tokens; empty where there are no input tokens. */
export const cachedShare = (cached: number, input: number): string =>
  input > 0 ? percent(cached, input) : '';

/** The price so far, undefined while it cannot be known; now is the usage of the running attempt. */
export function priceOf(work: Work, now?: Attempt['usage']): Price | undefined {
  if (isRun(work)) {
    const { agent_calls, cost_usd } = work.spent;
    return agent_calls > 0 ? { usd: cost_usd, unknown: cost_usd === null ? 1 : 0 } : undefined;
  }
  const told = work.attempts.flatMap(({ usage, ended_at, exit }, at) => {
    const used = (at === work.attempts.length - 1 && now) || usage;
    return used || (ended_at && exit?.kind !== 'not_started') ? [used?.cost_usd ?? null] : [];
  });
  if (told.length === 0) return undefined;
  const known = told.filter((usd) => usd !== null);
  const usd = known.length > 0 ? known.reduce((sum, one) => sum + one, 0) : null;
  return { usd, unknown: told.length - known.length };
}
