import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { type ApiError, api, ask } from './client';
import type { components } from './schema';

export type Template = components['schemas']['Template'];
export type TemplateSpec = components['schemas']['TemplateSpec'];

export const useTemplates = () =>
  useQuery({ queryKey: ['templates'], queryFn: () => ask(api.GET('/api/v1/templates')) });

/** A change of what is listed under a name; the list is read again. */
export function useChange<Input, Output>(noun: string, does: (input: Input) => Promise<Output>) {
  const queries = useQueryClient();
  return useMutation<Output, ApiError, Input>({
    mutationFn: does,
    onSuccess: () => queries.invalidateQueries({ queryKey: [noun] }),
  });
}

const named = (template: string) => ({ params: { path: { template } } });

/** Keep a template, in place of the one that was called so. */
export const keepTemplate = (spec: TemplateSpec, before: string | null): Promise<Template> =>
  before === null
    ? ask(api.POST('/api/v1/templates', { body: spec }))
    : ask(api.PUT('/api/v1/templates/{template}', { ...named(before), body: spec }));

export const deleteTemplate = (name: string): Promise<Template> =>
  ask(api.DELETE('/api/v1/templates/{template}', named(name)));
