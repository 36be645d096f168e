import createClient from 'openapi-fetch';
import type { components, paths } from './schema';

type Schemas = components['schemas'];
export type Task = Schemas['Task'];
export type Run = Schemas['Run'];
export type Work = Task | Run;
export type Attempt = Schemas['Attempt'];
export type CheckResult = Schemas['CheckResult'];
export type PersonMessage = Schemas['PersonMessage'];
export type Question = Schemas['Question'];
export type Schedule = Schemas['Schedule'];
export type Agent = Schemas['AgentView'];
export type Step = Schemas['Step'];
export type Usage = Schemas['UsageReport'];
export type UsageSum = Schemas['UsageSum'];
export type MergePreview = Schemas['MergePreview'];
export type FieldError = Schemas['FieldError'];

/** An error that the daemon answered with. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string | null,
    readonly fields: FieldError[] = [],
  ) {
    super(message);
  }
}

const AWAY = new ApiError(0, 'unavailable', 'The daemon is unreachable.', null);

export const api = createClient<paths>({ baseUrl: '' });

const strangers = new Set<() => void>();

/** Call back when the daemon no longer knows this browser. */
export function onUnauthorized(callback: () => void): () => void {
  strangers.add(callback);
  return () => strangers.delete(callback);
}

/** The error that an answer stands for. */
export async function refusal(response: Response): Promise<ApiError> {
  const body: unknown = await response.json().catch(() => null);
  return told(response, body);
}

function told(response: Response, body: unknown): ApiError {
  if (response.status === 401) for (const callback of strangers) callback();
  const error = (body as { error?: Schemas['ErrorBody'] } | null)?.error;
  const message = error?.message ?? `The daemon answered ${response.status}.`;
  const hint = error?.hint ?? null;
  return new ApiError(response.status, error?.code ?? 'internal_error', message, hint, error?.fields);
}

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** Returns the data of a response; throws ApiError. */
export async function ask<T>(request: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>;
  try {
    answer = await request;
  } catch {
    throw AWAY;
  }
  if (!answer.response.ok) throw told(answer.response, answer.error);
  return answer.data as T;
}

export const isRun = (work: Work): work is Run => 'pattern' in work;
